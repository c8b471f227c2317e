"""Decisions with their reasons, kept so that they can be explained later.

What :mod:`decision_list` shows and searches stands in columns as well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors, moments, texts
from scheduler_service.engine.journal import Decided
from scheduler_service.model import Flavor, Request, ZoneRequest
from scheduler_service.model.inventory import dashed
from scheduler_service.model.limits import NAME_LENGTH
from scheduler_service.moments import Moment
from scheduler_service.pipeline.explain import decisive_filter
from scheduler_service.pipeline.selection import explanation
from scheduler_service.store import rows, schema
from scheduler_service.store.connection import Writer
from scheduler_service.store.records import decision_list, recordings
from scheduler_service.store.records.decision_list import (
    GOOD,
    DecisionFilter,
    lines,
)

# How many requests are looked at, for their ids or flavors.
_NEWEST = 500
# Of a larger request only a line is kept, in bytes; and of a line, characters.
_MOST_BYTES = 65_536
_LONGEST_LINE = 1000
_SIZES = {'vcpus': 'vCPUs', 'memory_mb': 'MB', 'root_gb': 'GB'}
_UUID = re.compile(r'[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}')
_encode = msgspec.json.Encoder().encode
_COLUMNS = {
    'request_id': 'text',
    'kind': 'text',
    'outcome': 'text',
    'document': 'text',
    'caller_request_id': 'text',
    'global_request_id': 'text',
    'project_id': 'text',
    'user_id': 'text',
    'filter': 'text',
    'hosts': 'text',
    'instances': 'text',
    'times': 'int',
    'first_at': 'float',
    'run': 'int',
    'block': 'int',
    'place': 'int',
}
# The columns that are not of a single decision's row.
_OTHERS = 5
_DOCUMENT, _USER = map(list(_COLUMNS).index, ('document', 'user_id'))
# Of a stored request: what belongs to that one alone.
OF_ONE = 'request_id', 'instance_uuids'


class Decision:
    """The result of one request, and its reasons.

    :param kind: ``select_destinations``, ``schedule_zone``, ``external``, or
        ``pod_`` and a verb
    :param outcome: ``chosen``, ``ordered``, ``passed``, or the name of the
        error
    :param reasons: a mapping that JSON can represent, with the caller's
        ``project_id`` and ``user_id``; the ``placements`` that were chosen, as
        :class:`Placement`, or else the request's ``instance_uuids``; and the
        ``error``
    :param caller_request_id: the id of the request in the caller's log, where
        that is a different id
    :param global_request_id: the id of the request in the logs of all services
        that it went through; None: it has none
    :param decided: what is recorded of it; None: nothing
    :param lacks_request: whether the reasons have no request, since the
        recording has it, if it gets there
    :ivar document: JSON, the reasons
    :ivar filter: that left no host or pool; None: no filter did
    :ivar duration_ms: from its arrival on; None: it was not measured
    """

    def __init__(
        self,
        request_id: str | None,
        kind: str,
        outcome: str,
        reasons: Any,
        caller_request_id: str | None = None,
        global_request_id: str | None = None,
        decided: Decided | None = None,
        lacks_request: bool = False,
    ) -> None:
        facts = reasons['error']['facts'] if 'error' in reasons else reasons
        self.request_id, self.kind = str(request_id), kind
        self.outcome, self._reasons, self.document = outcome, reasons, ''
        self.duration_ms: float | None = reasons.get('duration_ms')
        self.filter = (
            None if outcome in GOOD else decisive_filter(facts) or None
        )
        self._more = (
            caller_request_id,
            global_request_id,
            reasons.get('project_id'),
            # A caller's text, of any length.
            (reasons.get('user_id') or '')[:NAME_LENGTH] or None,
            self.filter,
        )
        self._placements = reasons.get('placements') or ()
        self._instances = reasons.get('instance_uuids') or ()
        self._decided, self._lacks_request = decided, lacks_request

    @property
    def place(self) -> Sequence[int | None]:
        """Where it is recorded: run, block and index."""
        return (self._decided and self._decided.place) or _NOWHERE

    def encode(self, origin: Mapping[str, str]) -> None:
        """Make the document, which says first which daemon it is from."""
        self.document = _encode({**origin, **self._reasons}).decode()
        # As text it waits without objects for the garbage collector.
        self._reasons = {}

    def row(self) -> tuple[str | None, ...]:
        """Return the values of the columns but for id and time."""
        if not self.document:
            self.encode({})
        made, document = self._decided, self.document
        if self._lacks_request and made and made.place is None:
            more = asked(self.kind, made.request)
            document = _joined(document, _encode(more).decode())
        places = self._placements
        uuids = [place.instance_uuid for place in places] or self._instances
        return (
            self.request_id,
            self.kind,
            self.outcome,
            document,
            *self._more,
            lines([place.selected.host for place in places]),
            lines(uuids),
        )


def _joined(*objects: str) -> str:
    """Return the members of JSON objects as one object."""
    members = (each[1:-1] for each in objects if each != '{}')
    return f'{{{",".join(members)}}}'


def asked(
    kind: str, request: Request | ZoneRequest
) -> dict[str, msgspec.Raw | str]:
    """Return what a decision keeps of what was asked for.

    The request as it is, or its line where it is very large.
    """
    encoded = (
        request.text if isinstance(request, Request) else _encode(request)
    )
    if len(encoded) <= _MOST_BYTES:
        return {'request': msgspec.Raw(encoded)}
    return {'asked': _line_of(kind, msgspec.to_builtins(request))}


def _line_of(kind: str, request: Mapping[str, Any]) -> str:
    """Return in a line what was asked for; what is not set is left out."""
    flavor, image = request.get('flavor', {}), request.get('image', {})
    count, size = (
        request.get('num_instances', 1),
        [
            f'{flavor[name]:,} {unit}'
            for name, unit in _SIZES.items()
            if flavor.get(name)
        ],
    )
    what = f'{count} x flavor {flavor.get("name") or flavor.get("flavorid")}'
    what += f' ({", ".join(size)})' if size else ''
    if kind == 'schedule_zone':
        what = f'DNS zone {request.get("name")}'
    rest = {
        'image': image and image.get('id'),
        'zone': request.get('availability_zone'),
        'group': request.get('instance_group'),
        **request.get('scheduler_hints', {}),
        **request.get('attributes', {}),
        **flavor.get('extra_specs', {}),
        **((image or {}).get('properties') or {}),
    }
    words = [
        f'{name} {", ".join(map(str, value))}'
        if isinstance(value, list)
        else f'{name} {value}'
        for name, value in rest.items()
        if value
    ]
    return ', '.join([what, *words])[:_LONGEST_LINE]


_NOWHERE = None, None, None
# Stored decisions of some requests.
_EARLIER = (
    sa.select(
        *(schema.decisions.c[name] for name in list(_COLUMNS)[:-_OTHERS]),
        schema.decisions.c.id,
        schema.decisions.c.times,
        sa.func.coalesce(
            schema.decisions.c.first_at, schema.decisions.c.created_at
        ),
    )
    .where(rows.among(schema.decisions.c.request_id))
    .order_by(schema.decisions.c.id)
    .with_for_update()
)


def _verdict(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return what is equal where a decision is only repeated.

    That is all but the reasons and the user. A refused request may be sent
    again for new instances: then it has to ask for the same.

    :param row: as of :meth:`Decision.row`
    """
    *values, instances = row
    del values[_USER]
    document = values.pop(_DOCUMENT)
    if instances and values[2] not in GOOD:
        reasons = msgspec.json.decode(document)
        asked = reasons.get('request')
        if asked:
            own = {n: asked[n] for n in asked if n not in OF_ONE}
            instances = _encode(own)
    return *values, instances


def record(writer: Writer, decisions: Sequence[Decision]) -> int:
    """Insert decisions, each in place of those that it repeats.

    The newest reasons are kept, with the number of times and the first time.
    What was chosen repeats nothing: most decisions need no look at others.

    :return: how many more rows there are
    """
    made: dict[Any, tuple[Any, int, float | None, Any]] = {}
    for at, decision in enumerate(decisions):
        row: Sequence[Any] = decision.row()
        is_chosen = decision.outcome == 'chosen'
        verdict = at if is_chosen else _verdict(row)
        _, times, *_ = made.pop(verdict, (row, 0, None, None))
        made[verdict] = row, times + 1, None, decision.place
    replaced = []
    ids = {one.request_id for one in decisions if one.outcome != 'chosen'}
    for *row, number, more, first_at in rows.select_among(
        writer.conn, _EARLIER, ids
    ):
        verdict = _verdict(row)
        if verdict in made:
            newest, times, since, place = made[verdict]
            since = min(first_at, since or first_at)
            made[verdict] = newest, times + more, since, place
            replaced.append((number,))
    values = [
        (*row, times, since, *place)
        for row, times, since, place in made.values()
    ]
    if values:
        rows.insert_packed(
            writer.conn, 'decisions', _COLUMNS, values, 'created_at'
        )
    # Only now: SQLite would use their ids again.
    if replaced:
        rows.delete_packed(writer.conn, 'decisions', {'id': 'int'}, replaced)
    return len(values) - len(replaced)


def prune(writer: Writer, keep: int, most: int) -> int:
    """Delete decisions beyond the newest *keep*, the oldest first.

    :param most: how many at most
    :return: how many were deleted; 0: there are no more
    """
    number = schema.decisions.c.id
    kept = sa.select(sa.func.count()).select_from(schema.decisions)
    excess = min(writer.conn.execute(kept).scalar_one() - keep, most)
    if excess <= 0:
        return 0
    last = sa.select(number).order_by(number).limit(1).offset(excess - 1)
    newest = writer.conn.execute(last).scalar()
    delete = sa.delete(schema.decisions).where(number <= newest)
    return writer.conn.execute(delete).rowcount


def purge(writer: Writer, before: float, most: int) -> int:
    """Delete decisions that were made before a time, the oldest first.

    :param before: by the database's clock, in seconds since the epoch
    :param most: how many at most; fewer where ids have gaps
    :return: how many were deleted; 0: there are no more
    """
    # By id, since they are not indexed by time.
    number = schema.decisions.c.id
    oldest = writer.conn.execute(sa.select(sa.func.min(number))).scalar()
    delete = sa.delete(schema.decisions).where(
        schema.decisions.c.created_at < before, number < (oldest or 0) + most
    )
    return writer.conn.execute(delete).rowcount


def show(conn: Connection, request_id: str) -> list[dict[str, Any]]:
    """Return the decisions of a request id with their reasons, oldest first.

    ``recorded`` is its place in recordings: run, block and index there.

    :param request_id: of the daemon, of the caller or the global id; or the
        uuid of an instance
    :raises DecisionNotFound: no decision of this request is kept; the
        nearest id of the newest ones is named
    """
    table = schema.decisions
    query = sa.select(table).order_by(table.c.id)
    rows = conn.execute(query.where(decision_list.has_id(request_id))).all()
    if not rows and _UUID.fullmatch(request_id):
        instance = dashed(request_id)
        rows = conn.execute(
            query.where(decision_list.has(conn, table.c.instances, instance))
        ).all()
    decisions = [
        {
            'created_at': moments.text(row.created_at),
            'request_id': row.request_id,
            'kind': row.kind,
            'outcome': row.outcome,
            'times': row.times,
            'first_at': moments.text(row.first_at or row.created_at),
            'caller_request_id': row.caller_request_id,
            'global_request_id': row.global_request_id,
            **_of_pod(row),
            'recorded': None
            if row.run is None
            else [row.run, row.block, row.place],
            **_reasons(conn, row),
        }
        for row in rows
    ]
    if not decisions:
        error = errors.DecisionNotFound(request_id=request_id)
        newest = decision_list.search(conn, DecisionFilter(), _NEWEST)
        ids = [summary.request_id for summary in newest]
        near = texts.nearest(request_id, ids)
        raise errors.DecisionNotFound(f'{error}{near}', **error.facts)
    return decisions


def count_recorded(
    conn: Connection,
    since: float,
    until: float,
    blocks: tuple[int, int, int] | None = None,
) -> int:
    """Return how many decisions on hosts of some time are recorded.

    :param blocks: only those in these: run, first and last number; None: any
    """
    table = schema.decisions.c
    query = sa.select(sa.func.count()).where(
        table.kind == 'select_destinations',
        table.created_at.between(since, until),
        table.run.is_not(None),
    )
    if blocks is not None:
        run, first, last = blocks
        query = query.where(table.run == run, table.block.between(first, last))
    return int(conn.execute(query).scalar_one())


def _of_pod(row: Any) -> dict[str, Any]:
    if not row.kind.startswith(decision_list.POD_KIND):
        return {}
    named = decision_list.OF_PODS.items()
    return {name: getattr(row, column) for name, column in named}


def _reasons(conn: Connection, row: Any) -> dict[str, Any]:
    """Return the reasons of a decision, those for hosts not by column.

    The request of what was chosen is where it is recorded.
    """
    reasons: dict[str, Any] = msgspec.json.decode(row.document)
    if row.run is not None and not reasons.keys() & {'request', 'asked'}:
        place = row.run, row.block, row.place
        for recorded in recordings.requests(conn, [place]).values():
            what = _encode(asked(row.kind, recorded))
            reasons |= msgspec.json.decode(what)
    if request := reasons.get('request'):
        reasons['asked'] = _line_of(row.kind, request)
    columns = reasons.get('explanation')
    if columns and 'finalists' in columns:
        reasons['explanation'] = explanation(columns)
    return reasons


def asked_lines(conn: Connection, ids: Sequence[int]) -> dict[int, str]:
    """Return what some decisions were asked for, as far as it is kept.

    :param ids: of their rows
    :return: by id, a line each
    """
    columns = schema.decisions.c
    query = sa.select(
        columns.id, columns.kind, columns.document, columns.run,
        columns.block, columns.place,
    )  # fmt: skip
    lines, places = {}, {}
    for row in rows.select_in(conn, query, columns.id, ids):
        reasons = msgspec.json.decode(row.document)
        if request := reasons.get('request'):
            lines[row.id] = _line_of(row.kind, request)
        elif 'asked' in reasons:
            lines[row.id] = reasons['asked']
        elif row.run is not None:
            places[row.id] = row.kind, (row.run, row.block, row.place)
    recorded = recordings.requests(conn, {at for _, at in places.values()})
    for number, (kind, at) in places.items():
        if at in recorded:
            request = msgspec.to_builtins(recorded[at])
            lines[number] = _line_of(kind, request)
    return lines


def flavors(
    conn: Connection, since: Moment, most: int
) -> list[tuple[Flavor, int]]:
    """Return the flavors that the newest requests had most, and how often.

    :param since: the earliest request
    :param most: how many flavors
    """
    columns = schema.decisions.c
    place = columns.run, columns.block, columns.place
    query = sa.select(columns.document, *place).order_by(columns.id.desc())
    since_then = DecisionFilter(since=since)
    query = decision_list.matching(conn, query, since_then)
    query = query.where(columns.kind == 'select_destinations')
    times: Counter[bytes] = Counter()
    recorded = set()
    for document, *at in conn.execute(query.limit(_NEWEST)):
        reasons = msgspec.json.decode(document)
        flavor = reasons.get('request', {}).get('flavor')
        if flavor is not None:
            times[_encode(flavor)] += 1
        elif None not in at:
            recorded.add(tuple(at))
    for request in recordings.requests(conn, recorded).values():
        times[_encode(request.flavor)] += 1
    # Very large requests are not kept, nor is what was no request.
    return [
        (msgspec.json.decode(flavor, type=Flavor), count)
        for flavor, count in times.most_common(most)
    ]
