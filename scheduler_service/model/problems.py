"""Problems of documents: the place, and what was expected there.

The parser of types stops at the first error and names types of Python. The
checks here yield every problem with its path in the document; a caller that
only refuses takes the first. Stateless; any thread may call any function.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import math
import re
import types
import typing
from collections.abc import (
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Annotated, Any, NamedTuple, TypeVar, Union

import msgspec
from msgspec import inspect

from scheduler_service.model import limits
from scheduler_service.model.inventory import (
    NESTED_TYPES,
    STANDARD_CLASSES,
    Aggregate,
    Host,
    Instance,
    Inventory,
)

T = TypeVar('T')
_UNIONS = (Union, types.UnionType)
# A text of the parser, and the path at its end.
_MESSAGE = re.compile(
    r'^(?P<text>.*?)(?: - at (?:`key` in )?`\$?\.?(?P<path>.*)`)?$', re.S
)
_UUID = re.compile(r"matching regex '\^\[0-9a-fA-F\].*'")
_KINDS = {
    'int': 'an integer',
    'str': 'a string',
    'float': 'a number',
    'bool': 'true or false',
    'array': 'a list',
    'object': 'an object',
    'null': 'null',
}
# Part of an inventory -> the keys that no two entries may share.
_UNIQUE_KEYS: Mapping[str, tuple[str, ...]] = {
    'pools': ('id', 'name'),
    'hosts': ('host', 'uuid'),
    'aggregates': ('id', 'uuid'),
    'instances': ('uuid',),
    'server_groups': ('uuid',),
}


class Problem(NamedTuple):
    """A problem at a place of a document; its text is one sentence.

    :ivar at: path in the document; empty: the whole document
    """

    at: str
    text: str

    def __str__(self) -> str:
        return f'{self.at}: {self.text}' if self.at else self.text


def of_inventory(
    document: Any, stored: Collection[str] | None = None
) -> list[str]:
    """Return a sentence for each thing that is wrong with an inventory.

    Rules beyond types, such as unique names, are checked in the entries that
    can be parsed.

    :param stored: service hosts that aggregates may name beside those of the
        document; None: they may name any
    """
    problems = [*unstorable(document), *mistyped(document, Inventory)]
    if isinstance(document, dict):
        parsed: dict[str, list[Any]] = {}
        for part, kind in _fields(Inventory).items():
            entries = document.get(part)
            if isinstance(entries, list):
                (item,) = typing.get_args(kind)
                parsed[part] = [_parsed(entry, item) for entry in entries]
        problems += in_entities(parsed)
    sentences = [str(problem) for problem in problems]
    if isinstance(document, dict) and stored is not None:
        sentences += missing_hosts(document, stored)
    return list(dict.fromkeys(sentences))


def _parsed(entry: Any, kind: Any) -> Any:
    """Return an entry as an object of its type; None: it is not valid."""
    try:
        return msgspec.convert(entry, kind)
    except (msgspec.ValidationError, ValueError, OverflowError):
        return None


def missing_hosts(inventory: Any, stored: Collection[str] = ()) -> list[str]:
    """Return a sentence for each missing host that aggregates name.

    :param inventory: as an object or as plain values, which may be wrong
    :param stored: service hosts that are there beside those of the document
    """
    hosts = {*_values(inventory, 'hosts', 'host', str), *stored}
    names = sorted(hosts)
    return [
        f'aggregates[{place}].hosts[{index}]: there is no host '
        f'{host}{_hint(host, names)}'
        for place, members in enumerate(
            _values(inventory, 'aggregates', 'hosts', list)
        )
        for index, host in enumerate(members)
        if isinstance(host, str) and host not in hosts
    ]


def _values(inventory: Any, part: str, key: str, kind: type[T]) -> Iterator[T]:
    """Yield a value of each entry; ``kind()`` where it is of another type."""
    entries = _value(inventory, part)
    for entry in entries if isinstance(entries, list) else ():
        value = _value(entry, key)
        yield value if isinstance(value, kind) else kind()


def _value(entity: Any, key: str) -> Any:
    if isinstance(entity, dict):
        return entity.get(key)
    return getattr(entity, key, None)


def unstorable(document: Any, place: str = '') -> Iterable[Problem]:
    """Return text that not every database can store: NUL, lone surrogates.

    The encoder recognises documents without any, which are nearly all,
    without a walk through them.

    :param place: path of the document
    """
    try:
        if b'\\u0000' not in msgspec.json.encode(document):
            return ()
    except RecursionError:
        return [Problem(place or 'document', 'nested too deeply')]
    except (TypeError, ValueError):
        # A lone surrogate, found below, or a type that parsing rejects.
        pass
    return (
        Problem(at, 'expected text without NUL and lone surrogates')
        for at, text in _texts(document, place)
        if '\0' in text or any('\ud800' <= c <= '\udfff' for c in text)
    )


def _texts(document: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield every text, key or value, with its path.

    The path of a key is the path of its object.
    """
    if isinstance(document, str):
        yield place, document
    elif isinstance(document, list):
        for index, item in enumerate(document):
            yield from _texts(item, f'{place}[{index}]')
    elif isinstance(document, dict):
        for key, item in document.items():
            if isinstance(key, str):
                yield place, key
            yield from _texts(item, join(place, ascii(key).strip("'")))


def mistyped(value: Any, kind: Any, place: str = '') -> Iterator[Problem]:
    """Yield each value that is not of its type, and each wrong key.

    :param place: path of the value
    """
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as fault:
        below = _below(value, kind, place)
        first = next(below, None)
        if first is None:
            yield _explained(str(fault), value, kind, place)
        else:
            yield first
            yield from below
    except (RecursionError, OverflowError, ValueError) as fault:
        yield Problem(place, f'cannot be parsed: {fault}')


def _below(value: Any, kind: Any, place: str) -> Iterator[Problem]:
    kind = _narrowed(kind, value)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(value, dict) and _is_struct(kind):
        yield from _in_fields(value, kind, place)
    elif isinstance(value, dict) and origin is dict:
        for key, item in value.items():
            yield from mistyped(item, inner[1], join(place, str(key)))
    elif isinstance(value, list) and origin in (list, tuple):
        kinds = itertools.repeat(inner[0]) if origin is list else inner
        for index, (item, of) in enumerate(zip(value, kinds, strict=False)):
            yield from mistyped(item, of, f'{place}[{index}]')


def _in_fields(
    value: dict[Any, Any], kind: type[msgspec.Struct], place: str
) -> Iterator[Problem]:
    fields = _fields(kind)
    for key, item in value.items():
        name = str(key)
        if key in fields:
            yield from mistyped(item, fields[key], join(place, name))
        elif kind.__struct_config__.forbid_unknown_fields:
            hint = _hint(name, sorted(fields))
            yield Problem(join(place, name), f'unknown key{hint}')
    for field in msgspec.structs.fields(kind):
        if field.required and field.encode_name not in value:
            at = join(place, field.encode_name)
            yield Problem(at, 'required, but absent')


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {
        field.encode_name: field.type for field in msgspec.structs.fields(kind)
    }


def _narrowed(kind: Any, value: Any) -> Any:
    """Return a type without annotations, and of a union the value's type.

    :param value: an object or a list
    """
    origin = typing.get_origin(kind)
    if origin is Annotated:
        return _narrowed(typing.get_args(kind)[0], value)
    if origin in _UNIONS:
        containers = (list, tuple) if isinstance(value, list) else (dict,)
        for member in typing.get_args(kind):
            plain = _narrowed(member, value)
            if typing.get_origin(plain) in containers:
                return plain
            if isinstance(value, dict) and _is_struct(plain):
                return plain
    return kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _explained(message: str, value: Any, kind: Any, place: str) -> Problem:
    """Return a problem for a text of the parser about a value."""
    match = _MESSAGE.match(message)
    assert match is not None
    text, at = match['text'], join(place, match['path'] or '')
    info = inspect.type_info(kind)
    for member in getattr(info, 'types', ()):
        if not isinstance(member, inspect.NoneType):
            info = member
            break
    if text.startswith('Expected'):
        least = info.ge if isinstance(info, inspect.IntType) else None
        text = f'expected {_expected(text, least)}, got {shown(value)}'
    elif text.startswith('Invalid enum value'):
        text = _not_accepted(value, info)
    return Problem(at, text)


def _expected(text: str, least: int | None) -> str:
    """Return in words what ``Expected `int | null`, got `str``` expects.

    :param least: of integers, if any
    """
    body = text.removeprefix('Expected ').split(', got ')[0]
    for kind, words in _KINDS.items():
        body = re.sub(rf'\b{kind}\b', words, body)
    body = body.replace('`', '').replace(' | ', ' or ')
    if least is not None and body in ('an integer', 'an integer or null'):
        body = body.replace('an integer', f'an integer >= {least}')
    body = _UUID.sub('that is a UUID', body)
    return body.replace(
        r"matching regex '^[A-Z0-9_]{1,255}\\Z'", 'of A-Z, 0-9 and _'
    )


def _not_accepted(value: Any, info: inspect.Type) -> str:
    if isinstance(info, inspect.DictType):
        info = info.key_type
    if not isinstance(info, inspect.LiteralType):
        return f'not an accepted value, got {shown(value)}'
    accepted = ', '.join(str(option) for option in info.values)
    if isinstance(value, dict):
        return f'expected the keys {accepted} only, got {shown(value)}'
    return f'{shown(value)} is not one of {accepted}'


# Entities with limits that the types of their fields do not have.
CHECKED_ENTITIES = (Aggregate, Host, Instance)


def beyond_types(entity: Any, place: str = '') -> Iterator[Problem]:
    """Yield problems of a parsed entity that its types do not exclude.

    :param place: path of the entity
    """
    if isinstance(entity, Aggregate):
        for key, text in entity.metadata.items():
            limit = limits.metadata_limit(key)
            if limit is not None and limits.exceeds(text, limit):
                yield Problem(
                    join(join(place, 'metadata'), key),
                    f'expected a number of -{limit:g} to {limit:g}, '
                    f'got {shown(text)}',
                )
        for name in sorted({*STANDARD_CLASSES} & {*entity.resources}):
            at = join(join(place, 'resources'), name)
            yield Problem(at, 'each host offers its own')
    elif isinstance(entity, Host | Instance):
        for name, kind in NESTED_TYPES.items():
            if value := getattr(entity, name, None):
                plain = msgspec.to_builtins(value)
                yield from mistyped(plain, kind, join(place, name))


def in_entities(parts: Mapping[str, Sequence[Any]]) -> Iterator[Problem]:
    """Yield what is wrong in the entities of an inventory document.

    These checks are for documents that operators write. What hosts and other
    services report is only checked by :func:`beyond_types`.

    :param parts: entities by part; None in place of an invalid entity
    """
    for part, entities in parts.items():
        for index, entity in enumerate(entities):
            yield from beyond_types(entity, f'{part}[{index}]')
    for part, keys in _UNIQUE_KEYS.items():
        entries = list(parts.get(part, ()))
        for key in keys:
            values = [_unique(entity, key) for entity in entries]
            for index, problem in duplicates(part, key, values):
                yield problem
                # Duplicates of its other keys may follow from this key.
                entries[index] = None


def _unique(entity: Any, key: str) -> Any:
    if entity is None:
        return None
    if key == 'host':
        return entity.host, entity.hypervisor_hostname
    return getattr(entity, key)


def duplicates(
    part: str, key: str, values: Sequence[Any]
) -> Iterator[tuple[int, Problem]]:
    """Yield (index, problem) of repeated values; None does not count."""
    index_of: dict[Any, int] = {}
    for index, value in enumerate(values):
        first = index if value is None else index_of.setdefault(value, index)
        if first != index:
            if isinstance(value, tuple):
                host, node = value
                value = host if host == node else f'{host} (node {node})'
            text = f'{value} is a duplicate of {part}[{first}]'
            yield index, Problem(f'{part}[{index}].{key}', text)


def _hint(name: str, names: list[str]) -> str:
    """Return a hint at the name that may be meant; empty if none is near."""
    near = difflib.get_close_matches(name[:255], names, 1, 0.75)
    return f'; is {near[0]} meant?' if near else ''


def join(place: str, key: str) -> str:
    """Return the path of a key within a place."""
    if not place or not key or key.startswith('['):
        return f'{place}{key}'
    return f'{place}.{key}'


def shown(value: Any) -> str:
    """Return a value as JSON, shortened."""
    if isinstance(value, float) and not math.isfinite(value):
        # In JSON it would be null.
        return str(value)
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + '...'
