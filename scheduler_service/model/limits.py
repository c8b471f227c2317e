"""How long texts may be, and how large numbers in metadata and settings.

Lengths are checked before anything is stored, and the store's columns have the
same lengths: SQLite keeps any length, so a text that PostgreSQL and MariaDB
refuse would otherwise be refused too late.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

# Characters.
NAME_LENGTH = 255
ADDRESS_LENGTH = 64
UUID_LENGTH = 36
MESSAGE_ID_LENGTH = 64
# MariaDB's TEXT has 65,535 bytes, and a character takes up to four of them.
TEXT_LENGTH = 16_383

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LENGTH)]
# May be empty, unlike a name.
Short = Annotated[str, msgspec.Meta(max_length=NAME_LENGTH)]
Address = Annotated[str, msgspec.Meta(max_length=ADDRESS_LENGTH)]
Text = Annotated[str, msgspec.Meta(max_length=TEXT_LENGTH)]

MAX_RATIO = 1e9
# Weights and metrics: sums and products of a few stay finite.
MAX_NUMBER = 1e15
_RATIO_SUFFIX = '_allocation_ratio'
_MULTIPLIER_SUFFIX = '_weight_multiplier'
_COUNT_KEYS = frozenset(('max_io_ops_per_host', 'max_instances_per_host'))

# What flavors and images may ask of NUMA topologies, so that no figure takes
# long to work out. The number of cells is what compute services accept.
MAX_NUMA_CELLS = 128
_MAX_CPU = 4095
_MAX_CPU_LIST = 4096
_MAX_DIGITS = 15
_NUMA_CELLS = ('hw:numa_nodes', 'hw_numa_nodes')
_NUMA_CPUS = ('hw:numa_cpus.', 'hw_numa_cpus.')
_SIZES = (
    'hw:numa_mem.',
    'hw_numa_mem.',
    'hw:mem_page_size',
    'hw_mem_page_size',
)


def metadata_limit(key: str) -> float | None:
    """Return how large the number under a metadata key may be.

    :return: None where the metadata of aggregates is free text
    """
    if key.endswith(_RATIO_SUFFIX):
        return MAX_RATIO
    if key.endswith(_MULTIPLIER_SUFFIX) or key in _COUNT_KEYS:
        return MAX_NUMBER
    return None


def exceeds(text: str, limit: float) -> bool:
    """Say whether a text is a number, but not one within a limit.

    Infinity and NaN are not within a limit. A text that is not a number is
    left to its readers, which treat it as absent.
    """
    try:
        return not abs(float(text)) <= limit
    except ValueError:
        return False


def check_numa(settings: Mapping[str, Any]) -> None:
    """Check the NUMA figures of extra specs or image properties.

    :raises ValueError: a figure is out of bounds
    """
    for key, value in settings.items():
        if not key.startswith(('hw:', 'hw_')):
            continue
        if key in _NUMA_CELLS:
            _check_cells(key, value)
        elif key.startswith(_NUMA_CPUS):
            _check_cpus(key, str(value))
        elif key.startswith(_SIZES):
            _check_size(key, str(value))


def _check_cells(key: str, value: Any) -> None:
    _check_size(key, str(value) if isinstance(value, str) else '')
    try:
        count = int(value)
    except (OverflowError, TypeError, ValueError):
        # Text that is not a number is left to the filter that reads it, but
        # for infinity.
        count = MAX_NUMA_CELLS + 1 if value == float('inf') else 0
    if count > MAX_NUMA_CELLS:
        raise ValueError(
            f'{key}: expected at most {MAX_NUMA_CELLS}, got {value}'
        )


def _check_cpus(key: str, text: str) -> None:
    """Check a list of CPUs such as ``0-2,4,^1``."""
    if len(text) > _MAX_CPU_LIST:
        raise ValueError(f'{key}: expected at most {_MAX_CPU_LIST} characters')
    for item in text.replace('^', '').replace('-', ',').split(','):
        number = item.strip()
        if number.isdecimal() and int(number) > _MAX_CPU:
            raise ValueError(
                f'{key}: expected CPUs up to {_MAX_CPU}, got {number[:20]}'
            )


def _check_size(key: str, text: str) -> None:
    """Check that a size has no more digits than a figure may have."""
    if sum(char.isdecimal() for char in text) > _MAX_DIGITS:
        raise ValueError(
            f'{key}: expected at most {_MAX_DIGITS} digits, got {text[:20]}'
        )
