"""Parses and writes all documents of the model, as JSON or YAML.

A document is checked as a whole before any part of it is used. An error has
the path: ``hosts[17].memory_mb: expected an integer >= 0, got "lots"``.
Stateless; any thread may call any function.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from scheduler_service import errors
from scheduler_service.model import (
    consistency,
    document_text,
    limits,
    parse_errors,
    reported_parts,
    uniqueness,
)
from scheduler_service.model.inventory import (
    Aggregate,
    Document,
    Host,
    HostReport,
    Instance,
    Inventory,
    Pool,
    ReportedHost,
    ServerGroup,
)
from scheduler_service.model.parse_errors import join, shown
from scheduler_service.model.reply import HostsAnswer, PoolAnswer
from scheduler_service.model.request import Candidates, Request, ZoneRequest
from scheduler_service.model.storable import check_text as check_text

MAX_DEPTH = 32
T = TypeVar('T')


def request(document: Any) -> Request:
    """Parse a select_destinations request.

    :raises InvalidRequest: with the place and what was expected there
    """
    return _whole(document, Request, errors.InvalidRequest)


def zone(document: Any, named: bool = True) -> ZoneRequest:
    """Parse a schedule_zone request.

    :param named: whether the zone has to have a name
    :raises InvalidRequest: with the place and what was expected there
    """
    found = _whole(document, ZoneRequest, errors.InvalidRequest)
    if named and found.name is None:
        raise errors.InvalidRequest('name: required, but absent', at='name')
    return found


def candidates(document: Any) -> dict[str, Pool]:
    """Parse the pools that a caller sends; return them by id, in order.

    :raises InvalidRequest: with the place and what was expected there
    """
    wrapped = {'pools': document}
    found = _whole(wrapped, Candidates, errors.InvalidRequest).pools
    ids = (pool.id for pool in found)
    _check_no_duplicates('pools', 'id', ids, errors.InvalidRequest)
    return {pool.id: pool for pool in found}


def inventory(document: Any) -> Inventory:
    """Parse an inventory document, and check that its names are unique.

    :raises InvalidInventory: with the place and what was expected there
    """
    found = _whole(document, Inventory, errors.InvalidInventory)
    for part in ('hosts', 'aggregates', 'instances'):
        for index, entity in enumerate(getattr(found, part)):
            place = f'{part}[{index}]'
            _check(entity, errors.InvalidInventory, place)
            for text in consistency.faults(entity, place):
                at = text.partition(': ')[0]
                raise errors.InvalidInventory(text, at=at)
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
    found = _whole(document, kind, errors.InvalidInventory)
    _check(found, errors.InvalidInventory)
    return found


def check_entity(entity: T) -> T:
    """Return a part of an inventory that was not parsed, once it is checked.

    :raises InvalidInventory: with the place and what was expected there
    """
    return parse_as(msgspec.to_builtins(entity), type(entity))


def host_report(document: Any) -> HostReport:
    """Parse the report of a host about itself.

    :raises InvalidRequest: with the place and what was expected there
    """
    host = _whole(document, ReportedHost, errors.InvalidRequest)
    _check(host, errors.InvalidRequest)
    return HostReport.of(host, document)


def instance(document: Any) -> Instance:
    """Parse an instance that a host reports.

    :raises InvalidRequest: with the place and what was expected there
    """
    found = _whole(document, Instance, errors.InvalidRequest)
    _check(found, errors.InvalidRequest)
    return found


def aggregate(document: Any) -> Aggregate:
    """Parse an aggregate.

    :raises InvalidRequest: with the place and what was expected there
    """
    found = _whole(document, Aggregate, errors.InvalidRequest)
    _check(found, errors.InvalidRequest)
    return found


def server_group(document: Any) -> ServerGroup:
    """Parse a server group.

    :raises InvalidRequest: with the place and what was expected there
    """
    return _whole(document, ServerGroup, errors.InvalidRequest)


def read(
    text: bytes,
    source: str = 'document',
    fault: type[errors.SchedulerError] = errors.InvalidInventory,
) -> Any:
    """Read YAML or JSON text into plain values.

    :param source: its name in errors, such as a path
    :param fault: the class of the error if it is neither
    """
    value, twice = document_text.read(text, source, fault)
    if twice:
        raise _all_of(twice, fault, source=source)
    return value


def _all_of(
    problems: list[str], fault: type[errors.SchedulerError], **facts: Any
) -> errors.SchedulerError:
    """Return one error for all that is wrong with a document."""
    if len(problems) == 1:
        return fault(problems[0], **facts)
    return fault(
        f'{len(problems)} errors in the document',
        problems=problems,
        **facts,
    )


def refuse(problems: list[str]) -> None:
    """Refuse an inventory document if anything is wrong with it.

    :raises InvalidInventory: with all that is wrong in ``problems``
    """
    if problems:
        raise _all_of(problems, errors.InvalidInventory)


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


def _whole(
    document: Any, kind: type[T], error: type[errors.SchedulerError]
) -> T:
    """Return a document as an object of *kind*, with its text checked."""
    check_text(document, fault=error)
    return _convert(document, kind, error)


def _check(
    entity: Any, error: type[errors.SchedulerError], place: str = ''
) -> None:
    """Check what the types of a part of an inventory leave open.

    :param place: path of the part
    :raises: *error*, with the path
    """
    if isinstance(entity, Host):
        _check_parts(entity, reported_parts.OF_HOST, error, place)
    elif isinstance(entity, Instance):
        _check_parts(entity, reported_parts.OF_INSTANCE, error, place)
    elif isinstance(entity, Aggregate):
        _check_metadata(entity.metadata, error, place)


def _check_parts(
    entity: Any,
    kinds: Mapping[str, Any],
    error: type[errors.SchedulerError],
    place: str,
) -> None:
    for name, kind in kinds.items():
        value = getattr(entity, name)
        if value:
            plain = msgspec.to_builtins(value)
            _convert(plain, kind, error, join(place, name))


def _check_metadata(
    metadata: Mapping[str, str],
    error: type[errors.SchedulerError],
    place: str,
) -> None:
    """Check the numbers in the metadata of an aggregate."""
    for key, text in metadata.items():
        limit = limits.metadata_limit(key)
        if limit is not None and limits.exceeds(text, limit):
            where = join(join(place, 'metadata'), key)
            raise error(
                f'{where}: expected a number of -{limit:g} to {limit:g}, '
                f'got {shown(text)}',
                at=where,
            )


def _convert(
    document: Any,
    kind: type[T],
    error: type[errors.SchedulerError],
    within: str = '',
) -> T:
    """Return plain values as an object of *kind*.

    :param within: path of the document in errors
    :raises: *error*, with the path
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as fault:
        place, expected = parse_errors.explain(str(fault), document, kind)
        place = join(within, place)
        where = f'{place}: ' if place else ''
        raise error(f'{where}{expected}', at=place) from None
    except (RecursionError, OverflowError, ValueError) as fault:
        raise error(f'cannot be parsed: {fault}') from None


def check_parts_of(entity: Any, place: str) -> None:
    """Check what the types of a part of an inventory leave open.

    :param place: path of the part
    :raises InvalidInventory: with the path
    """
    _check(entity, errors.InvalidInventory, place)


def _check_unique(inventory: Inventory) -> None:
    """Check that ids and names are unique.

    :raises InvalidInventory: with the paths of both
    """
    parts = {part: getattr(inventory, part) for part in uniqueness.KEYS}
    for text in uniqueness.duplicates(parts):
        raise errors.InvalidInventory(text, at=text.partition(': ')[0])


def _check_no_duplicates(
    part: str,
    key: str,
    values: Iterable[Any],
    error: type[errors.SchedulerError] = errors.InvalidInventory,
) -> None:
    for _, text in uniqueness.twice(part, key, values):
        raise error(text, at=text.partition(': ')[0])


def prepare() -> None:
    """Have msgspec work out the types of all documents now, on one thread.

    It does so at the first use of each, and crashes the process where two
    threads are the first at the same time. To be called once more where
    modules with documents of their own are imported later.
    """
    parts = (*reported_parts.OF_HOST.values(), reported_parts.ImageMeta)
    answers = (HostsAnswer, PoolAnswer)
    for kind in (ReportedHost, *parts, *answers, *_kinds(Document)):
        with contextlib.suppress(msgspec.ValidationError):
            msgspec.convert(None, kind)


def _kinds(base: type[Any]) -> Iterator[type[Any]]:
    """Yield all classes that are made of a class."""
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


prepare()
