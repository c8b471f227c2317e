"""Finds everything that is wrong with an inventory document, not the first.

For people who write documents: parsing stops at the first error, and is what
says whether there is one. Stateless; any thread may call any function.
"""

from __future__ import annotations

import difflib
import functools
import types
import typing
from collections.abc import Collection, Iterable, Iterator
from typing import Annotated, Any, TypeVar, Union

import msgspec

from scheduler_service import errors
from scheduler_service.model import (
    consistency,
    documents,
    parse_errors,
    uniqueness,
)
from scheduler_service.model.inventory import Inventory
from scheduler_service.model.parse_errors import join, written

T = TypeVar('T')
_UNIONS = (Union, types.UnionType)


def of_inventory(
    document: Any, stored: Collection[str] | None = None
) -> list[str]:
    """Return a sentence for each thing that is wrong, with its place.

    What a part of the document leaves open, such as names that are there
    twice, is checked in the entries that can be parsed.

    :param stored: service hosts that aggregates may name beside those of the
        document; None: they may name any
    """
    found = [*_of_text(document), *_of(document, Inventory, '')]
    if not isinstance(document, dict):
        return list(dict.fromkeys(found))
    parsed: dict[str, list[Any]] = {}
    for part, kind in _types(Inventory).items():
        entries = document.get(part, [])
        item = typing.get_args(kind)[0]
        if isinstance(entries, list):
            parsed[part] = [_parsed(one, item) for one in entries]
    for part, whole in parsed.items():
        for index, one in enumerate(whole):
            place = f'{part}[{index}]'
            found += _of_entity(one, place)
            found += consistency.faults(one, place)
    found += uniqueness.duplicates(parsed)
    if stored is not None:
        hosts = _of_entries(document, 'hosts', 'host', str)
        members = _of_entries(document, 'aggregates', 'hosts', list)
        found += _missing({*hosts, *stored}, members)
    return list(dict.fromkeys(found))


def _of_entries(
    document: dict[Any, Any], part: str, key: str, kind: type[T]
) -> list[T]:
    """Return a value of each entry of a part; an empty one where it is odd."""
    entries = document.get(part)
    if not isinstance(entries, list):
        return []
    values = (one.get(key) if isinstance(one, dict) else None
              for one in entries)  # fmt: skip
    return [one if isinstance(one, kind) else kind() for one in values]


def missing_hosts(
    inventory: Inventory, stored: Collection[str] = ()
) -> list[str]:
    """Return a sentence for each host that aggregates name and is nowhere.

    :param stored: service hosts that are there beside those of the document
    """
    known = {host.host for host in inventory.hosts} | {*stored}
    return _missing(known, [one.hosts for one in inventory.aggregates])


def _missing(
    known: Collection[str], members: Iterable[Iterable[Any]]
) -> list[str]:
    """Return a sentence for each host of aggregates that is not known."""
    names = sorted(known)
    return [
        f'aggregates[{place}].hosts[{index}]: there is no host '
        f'{host}{_nearest(host, names)}'
        for place, hosts in enumerate(members)
        for index, host in enumerate(hosts)
        if isinstance(host, str) and host not in known
    ]


def _of_text(document: Any) -> list[str]:
    try:
        documents.check_text(document, fault=errors.InvalidInventory)
    except errors.InvalidInventory as fault:
        return [str(fault.args[0])]
    return []


def _of(value: Any, kind: Any, place: str) -> list[str]:
    """Return what is wrong with a value of a type, and with all below it."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as fault:
        below = list(_below(value, _plain(kind, value), place))
        if below:
            return below
        where, text = parse_errors.explain(str(fault), value, kind)
        where = join(place, where)
        return [f'{where}: {text}' if where else text]
    except (RecursionError, OverflowError, ValueError) as fault:
        return [f'{place}: cannot be parsed: {fault}']
    return []


def _below(value: Any, kind: Any, place: str) -> Iterator[str]:
    """Yield what is wrong with the parts of a value that cannot be parsed."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if isinstance(value, dict):
            yield from _of_fields(value, kind, place)
        return
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is list and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _of(item, inner[0], f'{place}[{index}]')
    elif origin is dict and isinstance(value, dict):
        for key, item in value.items():
            yield from _of(item, inner[1], join(place, written(key)))


def _of_fields(
    value: dict[Any, Any], kind: type[msgspec.Struct], place: str
) -> Iterator[str]:
    fields = _types(kind)
    for key, item in value.items():
        name = written(key)
        where = join(place, name)
        if key in fields:
            yield from _of(item, fields[key], where)
        else:
            yield f'{where}: unknown key{_nearest(name, sorted(fields))}'
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in value:
            yield f'{join(place, field.name)}: required, but absent'


def _plain(kind: Any, value: Any) -> Any:
    """Return a type without annotations, and of several the one that may be.

    :param value: says which one: an object or a list
    """
    if typing.get_origin(kind) is Annotated:
        return _plain(typing.get_args(kind)[0], value)
    if typing.get_origin(kind) in _UNIONS:
        for one in typing.get_args(kind):
            plain = _plain(one, value)
            if isinstance(value, typing.get_origin(plain) or plain):
                return plain
            if isinstance(value, dict) and _is_struct(plain):
                return plain
    return kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


@functools.cache
def _types(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the types of a document's fields."""
    return typing.get_type_hints(kind, include_extras=True)


def _parsed(entry: Any, kind: Any) -> Any:
    """Return an entry as what it should be; None if it is not."""
    try:
        return msgspec.convert(entry, kind)
    except (msgspec.ValidationError, ValueError, OverflowError):
        return None


def _of_entity(entity: Any, place: str) -> list[str]:
    try:
        documents.check_parts_of(entity, place)
    except errors.InvalidInventory as fault:
        return [str(fault.args[0])]
    return []


def _nearest(name: str, names: list[str]) -> str:
    """Return a hint at the name that may be meant; empty if none is near."""
    found = difflib.get_close_matches(name, names, 1, 0.75)
    return f'; is {found[0]} meant?' if found else ''
