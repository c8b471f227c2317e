"""Ids and names of an inventory that no two of its entries may share.

Stateless; any thread may call any function.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

# Part of an inventory -> the keys that no two entries may share.
KEYS: Mapping[str, tuple[str, ...]] = {
    'pools': ('id', 'name'),
    'hosts': ('host', 'uuid'),
    'aggregates': ('id', 'uuid'),
    'instances': ('uuid',),
    'server_groups': ('uuid',),
}


def duplicates(parts: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """Yield a sentence for each entry with an id or name of another one.

    :param parts: entries by part; None stands for one that is not valid
    """
    for part, keys in KEYS.items():
        entries = list(parts.get(part, ()))
        for key in keys:
            for index, text in twice(
                part, key, [_unique(one, key) for one in entries]
            ):
                yield text
                # Its other keys may follow from this one.
                entries[index] = None


def _unique(entity: Any, key: str) -> Any:
    if entity is None:
        return None
    if key == 'host':
        return f'{entity.host} {entity.hypervisor_hostname}'
    return getattr(entity, key)


def twice(
    part: str, key: str, values: Iterable[Any]
) -> Iterator[tuple[int, str]]:
    """Yield (index, sentence) of values that came before; None is no value."""
    seen: dict[Any, int] = {}
    for index, value in enumerate(values):
        if value is None:
            continue
        first = seen.setdefault(value, index)
        if first != index:
            yield (
                index,
                f'{part}[{index}].{key}: {value} is a duplicate of '
                f'{part}[{first}]',
            )
