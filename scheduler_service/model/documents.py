"""Parses and writes all documents of the model, as JSON or YAML.

A document is checked as a whole before any part of it is used. An error has
the path: ``hosts[17].memory_mb: expected an integer >= 0, got "lots"``.
Stateless; any thread may call any function.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from scheduler_service import errors
from scheduler_service.model.inventory import (
    Aggregate,
    HostReport,
    Instance,
    Inventory,
    ReportedHost,
)
from scheduler_service.model.request import Request, ZoneRequest

MAX_DEPTH = 32
T = TypeVar('T')
_AT = re.compile(
    r'^(?P<what>.*?)(?: - at (?:`key` in )?`\$?\.?(?P<path>.*)`)?$', re.S
)
_UUID = re.compile(r"matching regex '\^\[0-9a-fA-F\].*'")
_STEP = re.compile(r'\[(\d+)\]|\[\.\.\.\]|\.?([^.\[\]]+)')
_KINDS = {
    'int': 'an integer',
    'str': 'a string',
    'float': 'a number',
    'bool': 'true or false',
    'array': 'a list',
    'object': 'an object',
    'null': 'null',
}


def request(document: Any) -> Request:
    """Parse a select_destinations request.

    :raises InvalidRequest: with the place and what was expected there
    """
    return _whole(document, Request, errors.InvalidRequest)


def zone(document: Any) -> ZoneRequest:
    """Parse a schedule_zone request.

    :raises InvalidRequest: with the place and what was expected there
    """
    return _whole(document, ZoneRequest, errors.InvalidRequest)


def inventory(document: Any) -> Inventory:
    """Parse an inventory document, and check that its names are unique.

    :raises InvalidInventory: with the place and what was expected there
    """
    found = _whole(document, Inventory, errors.InvalidInventory)
    _check_unique(found)
    return found


def arguments(document: Any, kind: type[T]) -> T:
    """Parse the arguments of a method.

    :raises InvalidRequest: with the place and what was expected there
    """
    return _convert(document, kind, errors.InvalidRequest)


def parse_as(document: Any, kind: type[T]) -> T:
    """Parse a part of an inventory, such as one host.

    :raises InvalidInventory: with the place and what was expected there
    """
    return _whole(document, kind, errors.InvalidInventory)


def host_report(document: Any) -> HostReport:
    """Parse the report of a host about itself.

    :raises InvalidRequest: with the place and what was expected there
    """
    return HostReport.of(
        _whole(document, ReportedHost, errors.InvalidRequest), document
    )


def instance(document: Any) -> Instance:
    """Parse an instance that a host reports.

    :raises InvalidRequest: with the place and what was expected there
    """
    return _whole(document, Instance, errors.InvalidRequest)


def aggregate(document: Any) -> Aggregate:
    """Parse an aggregate.

    :raises InvalidRequest: with the place and what was expected there
    """
    return _whole(document, Aggregate, errors.InvalidRequest)


def read(
    text: bytes,
    source: str = 'document',
    fault: type[errors.SchedulerError] = errors.InvalidInventory,
) -> Any:
    """Read YAML or JSON text into plain values.

    :param source: its name in errors, such as a path
    :param fault: the class of the error if it is neither
    """
    try:
        if text.lstrip()[:1] in (b'{', b'['):
            return msgspec.json.decode(text)
        return msgspec.yaml.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise fault(
            f'{source}: cannot be read as YAML or JSON: {error}',
            source=source,
        ) from None


def dump(document: Any, form: str = 'json') -> bytes:
    """Write structs or plain values as JSON (indented) or YAML."""
    plain = msgspec.to_builtins(document)
    if form == 'yaml':
        return msgspec.yaml.encode(plain)
    return msgspec.json.format(msgspec.json.encode(plain), indent=2)


def check_depth(document: Any, limit: int = MAX_DEPTH) -> None:
    """Check how deeply a document nests lists and objects.

    :raises PayloadTooLarge: beyond *limit* levels
    """
    level = [document]
    for _ in range(limit):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise errors.PayloadTooLarge(
        f'nested more than {limit} levels deep', limit=limit
    )


def check_text(
    document: Any,
    place: str = '',
    fault: type[errors.SchedulerError] = errors.InvalidRequest,
) -> None:
    """Check for text that not every database can store.

    That is NUL and lone surrogates. The encoder recognises documents without
    either, which are nearly all, without a walk through them.

    :param place: path of the document in errors
    :raises InvalidRequest: or *fault*, with the path of the text
    """
    try:
        if b'\\u0000' not in msgspec.json.encode(document):
            return
    except RecursionError:
        where = place or 'document'
        raise fault(f'{where}: nested too deeply', at=place) from None
    except (UnicodeEncodeError, TypeError):
        # A lone surrogate, found below; or a type, which parsing rejects.
        pass
    for where, text in _texts(document, place):
        if '\0' in text or any('\ud800' <= char <= '\udfff' for char in text):
            raise fault(
                f'{where}: expected text without NUL and lone surrogates',
                at=where,
            )


def _texts(document: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield every text, key or value, with its path."""
    if isinstance(document, str):
        yield place, document
    elif isinstance(document, list):
        for index, item in enumerate(document):
            yield from _texts(item, f'{place}[{index}]')
    elif isinstance(document, dict):
        for key, item in document.items():
            if isinstance(key, str):
                yield place, key
            yield from _texts(item, _join(place, ascii(key).strip("'")))


def _whole(
    document: Any, kind: type[T], error: type[errors.SchedulerError]
) -> T:
    """Return a document as an object of *kind*, with its text checked."""
    check_text(document, fault=error)
    return _convert(document, kind, error)


def _convert(
    document: Any, kind: type[T], error: type[errors.SchedulerError]
) -> T:
    """Return plain values as an object of *kind*.

    :raises: *error*, with the path
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as fault:
        place, expected = _explain(str(fault), document, kind)
        where = f'{place}: ' if place else ''
        raise error(f'{where}{expected}', at=place) from None
    except (RecursionError, OverflowError, ValueError) as fault:
        raise error(f'cannot be parsed: {fault}') from None


def _explain(message: str, document: Any, kind: Any) -> tuple[str, str]:
    """Return the path, and what was expected and found, of a parser's text."""
    match = _AT.match(message)
    assert match is not None
    what, path = match['what'], match['path'] or ''
    place, value = _locate(path, document)
    if what.startswith('Object contains unknown field'):
        field = what.split('`')[1]
        return _join(place, field), 'unknown key'
    if what.startswith('Object missing required field'):
        field = what.split('`')[1]
        return _join(place, field), 'required, but absent'
    if what.startswith('Expected'):
        return place, f'expected {_expected(what)}, got {_shown(value)}'
    if what.startswith('Invalid enum value'):
        return place, _not_accepted(place, value, kind)
    return place, what


def _not_accepted(place: str, value: Any, kind: Any) -> str:
    """Return that a value is not one of those that its field accepts."""
    accepted = _accepted(inspect.type_info(kind), _STEP.findall(place))
    if not accepted:
        return f'not an accepted value, got {_shown(value)}'
    listed = ', '.join(accepted)
    if isinstance(value, dict):
        return f'expected the keys {listed} only, got {_shown(value)}'
    return f'{_shown(value)} is not one of {listed}'


def _accepted(kind: Any, path: list[tuple[str, str]]) -> list[str]:
    """Return the values of the enumeration at a path within a type."""
    if isinstance(kind, inspect.UnionType):
        kind = next((each for each in kind.types if not _is_null(each)), kind)
    if isinstance(kind, inspect.LiteralType):
        return [str(value) for value in kind.values]
    if isinstance(kind, inspect.DictType):
        return _accepted(kind.key_type, path)
    if not path:
        return []
    if isinstance(kind, inspect.ListType):
        return _accepted(kind.item_type, path[1:])
    if isinstance(kind, inspect.StructType):
        fields = {field.name: field.type for field in kind.fields}
        return _accepted(fields.get(path[0][1]), path[1:])
    return []


def _is_null(kind: Any) -> bool:
    return isinstance(kind, inspect.NoneType)


def _expected(what: str) -> str:
    """Return in words what ``Expected `int | null`, got `str``` expects."""
    body = what.removeprefix('Expected ').split(', got ')[0]
    for kind, words in _KINDS.items():
        body = re.sub(rf'\b{kind}\b', words, body)
    body = body.replace('`', '').replace(' | ', ' or ')
    if body == 'an integer' or body == 'an integer or null':
        body = body.replace('an integer', 'an integer >= 0')
    body = _UUID.sub('that is a UUID', body)
    return body.replace(
        "matching regex '^[A-Z0-9_]{1,255}$'", 'of A-Z, 0-9 and _'
    )


def _locate(path: str, document: Any) -> tuple[str, Any]:
    """Follow a parser's path; return it in our form, and the value there.

    The parser does not name keys of a map, so in a map the path ends there.
    """
    value, steps = document, []
    for index, key in _STEP.findall(path):
        if not index and not key:
            break
        step: Any = int(index) if index else key
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            break
        steps.append(f'[{step}]' if index else f'.{step}')
    return ''.join(steps).lstrip('.'), value


def _join(place: str, key: str) -> str:
    return f'{place}.{key}' if place else key


def _shown(value: Any) -> str:
    """Return a value as JSON, shortened."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + '...'


def _check_unique(inventory: Inventory) -> None:
    """Check that ids and names are unique.

    :raises InvalidInventory: with the paths of both
    """
    for part, key, values in (
        ('pools', 'id', (pool.id for pool in inventory.pools)),
        ('pools', 'name', (pool.name for pool in inventory.pools)),
        (
            'hosts',
            'host',
            (
                (host.host, host.hypervisor_hostname)
                for host in inventory.hosts
            ),
        ),
        ('hosts', 'uuid', (host.uuid for host in inventory.hosts)),
        ('aggregates', 'id', (each.id for each in inventory.aggregates)),
        ('aggregates', 'uuid', (each.uuid for each in inventory.aggregates)),
        ('instances', 'uuid', (each.uuid for each in inventory.instances)),
        (
            'server_groups',
            'uuid',
            (group.uuid for group in inventory.server_groups),
        ),
    ):
        _check_no_duplicates(part, key, values)


def _check_no_duplicates(part: str, key: str, values: Iterable[Any]) -> None:
    seen: dict[Any, int] = {}
    for index, value in enumerate(values):
        first = seen.setdefault(value, index)
        if first != index:
            shown = value if not isinstance(value, tuple) else ' '.join(value)
            raise errors.InvalidInventory(
                f'{part}[{index}].{key}: {shown} is a duplicate of '
                f'{part}[{first}]',
                at=f'{part}[{index}].{key}',
            )
