"""Parses and writes all documents of the model, as JSON or YAML.

A document is checked as a whole before any part of it is used. An error has
the path: ``hosts[17].memory_mb: expected an integer >= 0, got "lots"``.
Stateless; any thread may call any function.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

import msgspec
import yaml

from scheduler_service import errors
from scheduler_service.model import document_text, problems
from scheduler_service.model.inventory import (
    NESTED_TYPES,
    HostReport,
    Inventory,
    Pool,
    ReportedHost,
)
from scheduler_service.model.problems import Problem
from scheduler_service.model.request import (
    PoolCandidates,
    Request,
    ZoneRequest,
)

MAX_DEPTH = 32
T = TypeVar('T')
Fault = type[errors.SchedulerError]


def request(document: Any) -> Request:
    """Parse a select_destinations request.

    :raises InvalidRequest: with the place and what was expected there
    """
    return parse(document, Request)


def checked_request(document: Any) -> Request:
    """Parse a request of a caller, in which every extra spec means something.

    :raises InvalidRequest: with the place and what was expected there
    """
    parsed = request(document)
    parsed.refuse_internal_hints()
    parsed.check()
    return parsed


def zone(document: Any, named: bool = True) -> ZoneRequest:
    """Parse a schedule_zone request.

    :param named: whether the zone has to have a name
    :raises InvalidRequest: with the place and what was expected there
    """
    parsed = parse(document, ZoneRequest)
    if named and parsed.name is None:
        raise errors.InvalidRequest.at('name', 'required, but absent')
    return parsed


def candidates(document: Any) -> dict[str, Pool]:
    """Parse the pools that a caller sends; return them by id, in order.

    :raises InvalidRequest: with the place and what was expected there
    """
    pools = parse({'pools': document}, PoolCandidates).pools
    ids = [pool.id for pool in pools]
    for _, problem in problems.duplicates('pools', 'id', ids):
        _refuse_first([problem], errors.InvalidRequest)
    return {pool.id: pool for pool in pools}


def inventory(document: Any) -> Inventory:
    """Parse an inventory document, and check that its names are unique.

    :raises InvalidInventory: with the first place and what was expected there
    """
    parsed = parse(document, Inventory, errors.InvalidInventory)
    parts = {name: getattr(parsed, name) for name in parsed.__struct_fields__}
    _refuse_first(problems.in_entities(parts), errors.InvalidInventory)
    return parsed


def host_report(document: Any) -> HostReport:
    """Parse the report of a host about itself.

    :raises InvalidRequest: with the place and what was expected there
    """
    return HostReport.of(parse(document, ReportedHost), document)


def parse(
    document: Any, kind: type[T], fault: Fault = errors.InvalidRequest
) -> T:
    """Parse a document, or a part of one such as a host.

    :raises InvalidRequest: or *fault*, with the place and what was expected
        there
    """
    check_text(document, fault=fault)
    parsed = arguments(document, kind, fault)
    if isinstance(parsed, problems.CHECKED_ENTITIES):
        _refuse_first(problems.beyond_types(parsed), fault)
    return parsed


def check_entity(entity: T) -> T:
    """Return a part of an inventory that was not parsed, once it is checked.

    :raises InvalidInventory: with the place and what was expected there
    """
    plain = msgspec.to_builtins(entity)
    return parse(plain, type(entity), errors.InvalidInventory)


def arguments(
    document: Any, kind: type[T], fault: Fault = errors.InvalidRequest
) -> T:
    """Parse arguments of a method by their types alone.

    :raises InvalidRequest: or *fault*, with the place and what was expected
        there
    """
    try:
        return msgspec.convert(document, kind)
    except (msgspec.ValidationError, RecursionError, OverflowError,
            ValueError):  # fmt: skip
        _refuse_first(problems.mistyped(document, kind), fault)
        raise


def check_text(
    document: Any, place: str = '', fault: Fault = errors.InvalidRequest
) -> None:
    """Check for text that not every database can store, and huge numbers.

    :param place: path of the document in errors
    :raises InvalidRequest: or *fault*, with the path of the value
    """
    mistakes = problems.unstorable(document, place)
    if mistakes:
        _refuse_first(mistakes, fault)


def _refuse_first(mistakes: Iterable[Problem], fault: Fault) -> None:
    """Refuse a document if there is a problem.

    :raises: *fault*, with the first problem and its path
    """
    for problem in mistakes:
        raise fault(str(problem), at=problem.at) from None


def read(
    text: bytes,
    source: str = 'document',
    fault: Fault = errors.InvalidInventory,
) -> Any:
    """Read YAML or JSON text into plain values.

    :param source: its name in errors, such as a path
    :param fault: the class of the error if it is neither
    """
    value, twice = document_text.read(text, source, fault)
    refuse(twice, fault, source=source)
    return value


def refuse(
    sentences: list[str],
    fault: Fault = errors.InvalidInventory,
    **facts: Any,
) -> None:
    """Refuse a document if anything is wrong with it.

    :raises InvalidInventory: or *fault*, with all that is wrong, in
        ``problems`` if it is more than one sentence
    """
    if len(sentences) > 1:
        facts['problems'] = sentences
        sentences = [f'{len(sentences)} errors in the document']
    for sentence in sentences:
        raise fault(sentence, **facts)


def dump(document: Any, form: str = 'json') -> bytes:
    """Write structs or plain values as JSON (indented) or YAML.

    In ASCII, where there are characters that :func:`texts.printable` escapes.
    """
    plain = msgspec.to_builtins(document)
    is_yaml = form == 'yaml'
    encode = msgspec.yaml.encode if is_yaml else msgspec.json.encode
    text = encode(plain)
    if not text.decode().replace('\n', '').isprintable():
        write = yaml.safe_dump if is_yaml else json.dumps
        escaped = write(plain, sort_keys=False).replace('\x7f', r'\u007f')
        text = escaped.encode()
    return text if is_yaml else msgspec.json.format(text, indent=2)


def too_large(size: int | None, limit: int) -> errors.PayloadTooLarge:
    """Return the error of a text that is too long.

    :param size: in bytes; None: unknown
    :param limit: in bytes
    """
    if size is None:
        return errors.PayloadTooLarge(f'more than {limit} bytes', limit=limit)
    return errors.PayloadTooLarge(
        f'{size} bytes, at most {limit} are allowed', size=size, limit=limit
    )


def check_count(listed: Sized, place: str, most: int) -> None:
    """Check how many entries a list has.

    :param place: its path in errors
    :raises PayloadTooLarge: it has more than *most*
    """
    if len(listed) > most:
        raise errors.PayloadTooLarge(
            f'{place}: at most {most}, got {len(listed)}'
        )


def check_depth(document: Any) -> None:
    """Check how deeply a document nests lists and objects.

    :raises PayloadTooLarge: beyond :data:`MAX_DEPTH` levels
    """
    level = [document]
    for _ in range(MAX_DEPTH):
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
        f'nested more than {MAX_DEPTH} levels deep', limit=MAX_DEPTH
    )


def prepare() -> None:
    """Have msgspec work out the types of all documents now, on one thread.

    Otherwise msgspec does so at the first use of a type, and crashes the
    process where two threads are first at the same time. Call again after the
    import of modules with documents of their own.
    """
    for kind in (*NESTED_TYPES.values(), *_kinds(msgspec.Struct)):
        # Some structs, such as jobs, are never parsed and cannot be.
        with contextlib.suppress(msgspec.ValidationError, TypeError):
            msgspec.convert(None, kind)


def _kinds(base: type[Any]) -> Iterator[type[Any]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


prepare()
