"""Outcomes of requests, so that no request is processed twice.

A request that reaches the daemons once more has the same idempotency key: the
id of its message and the index of its entry. A claim is its own outcome: its
row has the key and the placement. When the row goes, or gets another place,
the placement is kept here (:func:`keep_placements`), in the same transaction.
Everything else is recorded here from the start.

``releases`` is kept per instance and project: requests that were sent before a
release must not claim afterwards, even those that no daemon has processed yet.
The project of such an instance is not decided yet, so a release concerns only
requests of the releasing project, or all requests if its caller acts for all
projects.

Stateless: any thread may call it with a connection of its own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import clock, rows, schema
from scheduler_service.store.claims.claim_sql import Claim
from scheduler_service.store.connection import Writer

# A request was refused: the document is its error.
REFUSED = 'refused'
# The document is the whole result.
RESULT = 'result'
# The document is the placement of one instance, which was released since.
PLACEMENT = 'placement'
# There was an outcome, whose document was deleted after its retention.
EXPIRED = 'expired'
# Kinds of releases: of everything, and of the second claim of a move alone.
ALL, MOVE = 'all', 'move'
# How long the record without its document is kept, in retentions.
_EXPIRED_KEPT = 7
# The number of projects whose digest is kept: each claim is compared by it.
_PROJECTS = 4096
# In the order of the fields of :class:`RecordedOutcome`.
_OUTCOME = {
    'idempotency_key': 'text',
    'kind': 'text',
    'document': 'text',
    'instance_uuid': 'text',
}
_KEY = {'idempotency_key': 'text'}
_RELEASE = {'instance_uuid': 'text', 'kind': 'text'}
# The kinds of releases that cancel a request: for all, and for its project.
_SEEN = {**_RELEASE, 'of_project': 'text', 'revision': 'int'}
SENT_RELEASE = {
    **_RELEASE,
    'project_id': 'text',
    'sent_at': 'float',
}


class RecordedOutcome(NamedTuple):
    """The outcome of a request, or of one of its instances.

    :ivar instance: of a placement; empty: the whole request
    :ivar document: JSON
    """

    key: str
    kind: str
    document: str | None = None
    instance: str = ''


class ReleaseRequest(NamedTuple):
    """When a caller asked for a release, and for whom.

    :ivar sent_at: seconds since the epoch, by the caller's clock; None: the
        caller did not state it
    :ivar project_id: None: the caller acts for all projects
    """

    sent_at: float | None = None
    project_id: str | None = None


class Release(NamedTuple):
    """The last release of an instance's claims, by a project or for all.

    :ivar instance: its uuid
    :ivar kind: :data:`ALL` or :data:`MOVE`
    :ivar revision: of the change that released
    :ivar age: seconds since then
    :ivar released_at: seconds since the epoch, by the database's clock
    :ivar sent_at: the same when it was sent, by its caller's clock
    """

    instance: str
    kind: str
    revision: int
    age: float
    released_at: float
    sent_at: float | None


def add(conn: Connection, outcomes: Sequence[RecordedOutcome]) -> None:
    """Record outcomes; none: no statement.

    :raises DBDuplicateEntry: a request has an outcome already
    """
    if outcomes:
        rows.insert_packed(
            conn, 'outcomes', _OUTCOME, sorted(outcomes), 'created_at'
        )


def find(conn: Connection, key: str) -> list[RecordedOutcome]:
    """Return the recorded outcomes of a request."""
    table = schema.outcomes.c
    query = sa.select(*(table[name] for name in _OUTCOME))
    found = conn.execute(query.where(table.idempotency_key == key))
    return [RecordedOutcome(*row) for row in found]


def held_placements(
    conn: Connection, key: str, instances: Collection[str]
) -> dict[str, str]:
    """Return the placements that a request's claims still hold, as JSON.

    :param instances: of the request
    """
    held: dict[str, str] = {}
    # A move that is completed goes from ``moves`` to ``instances``.
    for table, uuid in (
        (schema.moves, schema.moves.c.instance_uuid),
        (schema.instances, schema.instances.c.uuid),
    ):
        query = sa.select(uuid, table.c.placement)
        mine = query.where(table.c.idempotency_key == key)
        held.update(map(tuple, rows.select_in(conn, mine, uuid, instances)))
    return held


def keep_placements(
    writer: Writer, instances: Sequence[str], moving: bool
) -> None:
    """Keep the placements of claims whose rows are about to go.

    :param moving: of claims for moves, not of those for present places
    """
    if instances:
        writer.conn.execute(_keeping(moving), {'keys': instances})


@functools.cache
def _keeping(moving: bool) -> Any:
    table: Any = schema.moves if moving else schema.instances
    uuid = table.c.instance_uuid if moving else table.c.uuid
    kept = schema.outcomes
    query = sa.select(
        table.c.idempotency_key,
        sa.literal(PLACEMENT),
        table.c.placement,
        uuid,
        clock.NOW,
    ).where(
        rows.among(uuid),
        table.c.idempotency_key.is_not(None),
        table.c.placement.is_not(None),
    )
    return sa.insert(kept).from_select([*_OUTCOME, 'created_at'], query)


def record_releases(
    writer: Writer, requests: Mapping[str, ReleaseRequest], kind: str
) -> None:
    """Record that claims of instances are released now.

    :param requests: by instance
    :param kind: :data:`ALL` or :data:`MOVE`
    """
    writer.touched.released += sorted(requests)
    revision = writer.take_revision()
    rows.insert_packed(
        writer.conn,
        'releases',
        {**SENT_RELEASE, 'revision': 'int'},
        [(*row, revision) for row in release_rows(requests, kind)],
        'released_at',
        tuple(_RELEASE),
    )


def release_rows(
    requests: Mapping[str, ReleaseRequest], kind: str
) -> list[tuple[Any, ...]]:
    """Return rows in the order of :data:`SENT_RELEASE`."""
    return [
        (uuid, _kind_key(kind, project_id), project_id, sent_at)
        for uuid, (sent_at, project_id) in sorted(requests.items())
    ]


@functools.lru_cache(_PROJECTS)
def _kind_key(kind: str, project_id: str | None) -> str:
    """Return what the column ``kind`` has for a release of a project.

    It keeps the rows of projects, and that of releases for all, apart: none
    replaces another. A digest is compared as it is on every database, where a
    column of project ids would not tell some apart.
    """
    if project_id is None:
        return kind
    digest = hashlib.blake2b(project_id.encode(), digest_size=8).digest()
    return f'{kind}:{base64.urlsafe_b64encode(digest).decode().rstrip("=")}'


@functools.cache
def coming_first(dialect: str) -> str:
    """Return the query that has a row where claims must not be made.

    By what is committed: an instance was released since its request was
    compared with releases, or a request has an outcome: a copy of its message
    was faster.
    """
    keys, seen = (
        f'SELECT 1 FROM {rows.source(dialect, columns, parameter)} '  # noqa: S608
        + rows.joined(dialect, table, 'f', {key: f'a.{key}'})
        for table, parameter, columns, key in (
            ('outcomes', 'keys', _KEY, 'idempotency_key'),
            ('releases', 'seen', _SEEN, 'instance_uuid'),
        )
    )
    return (
        f'{keys} UNION ALL {seen} WHERE f.revision > a.revision '
        'AND f.kind IN (a.kind, a.of_project)'
    )


def came_first_values(dialect: str, claims: Sequence[Claim]) -> dict[str, Any]:
    """Return the parameters of :func:`coming_first`."""
    seen = [
        (
            claim.consumer,
            kind,
            _kind_key(kind, claim.project_id),
            claim.releases_seen,
        )
        for claim in claims
        for kind in ((ALL, MOVE) if claim.move else (ALL,))
    ]
    keys = [(claim.key,) for claim in claims if claim.key]
    return {
        **rows.pack(dialect, _SEEN, seen, 'seen'),
        **rows.pack(dialect, _KEY, keys, 'keys'),
    }


def releases(
    conn: Connection, instances: Collection[str], project_id: str | None
) -> list[Release]:
    """Return the releases of instances of a request that concern it.

    :param project_id: of the request: releases by other projects do not
        concern it
    """
    table = schema.releases.c
    query = sa.select(
        table.instance_uuid,
        table.kind,
        table.revision,
        clock.NOW - table.released_at,
        table.released_at,
        table.sent_at,
    ).where(sa.or_(table.project_id.is_(None), table.project_id == project_id))
    found = rows.select_in(conn, query, table.instance_uuid, instances)
    return [
        Release(uuid, kind.partition(':')[0], revision, float(age), *times)
        for uuid, kind, revision, age, *times in found
    ]


def prune(writer: Writer, retention: float) -> None:
    """Delete documents older than the retention, by the database's clock.

    The record that a request had an outcome is kept longer.

    :param retention: in seconds
    """
    conn, table, gone = writer.conn, schema.outcomes, schema.releases
    at = clock.read(conn)
    conn.execute(
        sa.update(table)
        .where(table.c.created_at < at - retention, table.c.kind != EXPIRED)
        .values(kind=EXPIRED, document=None)
    )
    before = at - _EXPIRED_KEPT * retention
    conn.execute(sa.delete(table).where(table.c.created_at < before))
    conn.execute(sa.delete(gone).where(gone.c.released_at < before))
