"""Bounds of what flavors and images may ask of NUMA topologies. Stateless.

Filters read the figures. Here it is only checked that none is so large that
working it out would take long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# As many as compute services accept.
MAX_NODES = 128
_MAX_CPU = 4095
_MAX_TEXT = 4096
_MAX_DIGITS = 15
_NODES = ('hw:numa_nodes', 'hw_numa_nodes')
_PREFIXES = (
    ('hw:numa_cpus.', 'hw_numa_cpus.'),
    ('hw:numa_mem.', 'hw_numa_mem.'),
    ('hw:mem_page_size', 'hw_mem_page_size'),
)


def check(settings: Mapping[str, Any]) -> None:
    """Check extra specs or image properties.

    :raises ValueError: a figure is out of bounds
    """
    for key, value in settings.items():
        if not key.startswith(('hw:', 'hw_')):
            continue
        if key in _NODES:
            _check_nodes(key, value)
        elif key.startswith(_PREFIXES[0]):
            _check_cpus(key, str(value))
        elif key.startswith(_PREFIXES[1] + _PREFIXES[2]):
            _check_size(key, str(value))


def _check_nodes(key: str, value: Any) -> None:
    _check_size(key, str(value) if isinstance(value, str) else '')
    try:
        count = int(value)
    except (OverflowError, TypeError, ValueError):
        # What is no number at all is left to the filter that reads it, but
        # for infinity.
        count = MAX_NODES + 1 if value == float('inf') else 0
    if count > MAX_NODES:
        raise ValueError(f'{key}: expected at most {MAX_NODES}, got {value}')


def _check_cpus(key: str, text: str) -> None:
    """Check a list of CPUs such as ``0-2,4,^1``."""
    if len(text) > _MAX_TEXT:
        raise ValueError(f'{key}: expected at most {_MAX_TEXT} characters')
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
