"""How long texts may be, and how large numbers.

Lengths are checked before anything is stored, and the store's columns have the
same lengths: SQLite keeps any length, so a text that PostgreSQL and MariaDB
refuse would otherwise be refused too late.
"""

from __future__ import annotations

from typing import Annotated

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

# The most cells of an instance that compute services accept.
MAX_NUMA_CELLS = 128


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
    """Return whether a text is a number, but not one within a limit.

    Infinity and NaN are not within a limit. A text that is not a number is
    left to its readers, which treat it as absent.
    """
    try:
        return not abs(float(text)) <= limit
    except ValueError:
        return False
