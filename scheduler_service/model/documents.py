"""Parse and dump the documents; nothing else knows JSON or YAML.

A document is checked as a whole before anybody uses a part of it. An error
names the place: ``hosts[17].memory_mb: expected an integer >= 0, got "lots"``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

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
    """Parse an inventory document and check what it says about itself.

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
    """Parse what a host reports of itself.

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

    :param source: what to call it in the error
    :param fault: the error to raise where the text is neither
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
    """Refuse a document that nests lists and objects too deeply.

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
    """Refuse text that not every database can hold.

    That is NUL, and halves of surrogate pairs. Most documents have neither
    and are told by the encoder, without a walk.

    :param place: what to call the document in the error
    :raises InvalidRequest: or what *fault* is, with the place
    """
    try:
        if b'\\u0000' not in msgspec.json.encode(document):
            return
    except RecursionError:
        where = place or 'document'
        raise fault(f'{where}: nested too deeply', at=place) from None
    except (UnicodeEncodeError, TypeError):
        # A text that JSON cannot hold, or a type: that is told later.
        pass
    for where, text in _texts(document, place):
        if '\0' in text or any('\ud800' <= char <= '\udfff' for char in text):
            raise fault(
                f'{where}: expected text without NUL and lone surrogates',
                at=where,
            )


def _texts(document: Any, place: str) -> Iterator[tuple[str, str]]:
    """Give every text, key or value, with its place."""
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
    """Turn a document into *kind*, its text and its types checked."""
    check_text(document, fault=error)
    return _convert(document, kind, error)


def _convert(
    document: Any, kind: type[T], error: type[errors.SchedulerError]
) -> T:
    """Turn plain values into *kind*, or raise *error* naming the place."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as fault:
        place, expected = _explain(str(fault), document)
        where = f'{place}: ' if place else ''
        raise error(f'{where}{expected}', at=place) from None
    except (RecursionError, OverflowError, ValueError) as fault:
        raise error(f'cannot be read: {fault}') from None


def _explain(message: str, document: Any) -> tuple[str, str]:
    """Turn a parser's message into (place, what was expected and found)."""
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
        return place, f'not an accepted value, got {_shown(value)}'
    return place, what


def _expected(what: str) -> str:
    """Say in words what ``Expected `int | null`, got `str``` wanted."""
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
    """Walk a parser's path; return it as written and the value there.

    The parser does not say which key of a map it was in: the first value of
    the map that is not like its fellows cannot be told apart, so the place
    ends at the map.
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


def _check_unique(found: Inventory) -> None:
    """Refuse a document that names one thing twice."""
    _refuse_twice('pools', 'id', (pool.id for pool in found.pools))
    _refuse_twice('pools', 'name', (pool.name for pool in found.pools))
    nodes = ((h.host, h.hypervisor_hostname) for h in found.hosts)
    _refuse_twice('hosts', 'host', nodes)
    _refuse_twice('hosts', 'uuid', (host.uuid for host in found.hosts))
    _refuse_twice('aggregates', 'id', (a.id for a in found.aggregates))
    _refuse_twice('aggregates', 'uuid', (a.uuid for a in found.aggregates))
    _refuse_twice('instances', 'uuid', (i.uuid for i in found.instances))
    _refuse_twice(
        'server_groups', 'uuid', (g.uuid for g in found.server_groups)
    )


def _refuse_twice(part: str, key: str, values: Iterable[Any]) -> None:
    seen: dict[Any, int] = {}
    for index, value in enumerate(values):
        first = seen.setdefault(value, index)
        if first != index:
            shown = value if not isinstance(value, tuple) else ' '.join(value)
            raise errors.InvalidInventory(
                f'{part}[{index}].{key}: {shown} is there already, '
                f'as {part}[{first}]',
                at=f'{part}[{index}].{key}',
            )
