"""Claims: capacity taken for consumers, all of a batch or nothing.

The claim's own statement takes capacity only where it still fits; a row it
did not change means somebody was faster. Rows are taken in one fixed order,
so two batches wait for each other instead of locking each other out.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from oslo_db import exception as db_exception
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.engine import Connection

from scheduler_service.store import groups, rows, schema
from scheduler_service.store.connection import (
    REVISION,
    Store,
    Touched,
    Writer,
)

_ASK = {
    'host_id': 'int',
    'resource_class': 'text',
    'amount': 'int',
    'ratio': 'float',
    'fallback': 'float',
}
_ALLOCATION = {
    'consumer_uuid': 'text',
    'host_id': 'int',
    'resource_class': 'text',
    'amount': 'int',
}
_INSTANCE = {
    'uuid': 'text',
    'host': 'text',
    'node': 'text',
    'state': 'text',
    'project_id': 'text',
    'request_id': 'text',
    'document': 'text',
    'placement': 'text',
    'created_at': 'float',
}
_TAKE = (
    'used = i.used + a.amount, available_least = i.available_least - a.amount'
)
_SAME = 'i.host_id = a.host_id AND i.resource_class = a.resource_class'
_LIMIT = 'COALESCE(a.ratio, NULLIF(i.allocation_ratio, 0), a.fallback)'
# No vCPUs at all: the host's figures are not collected, nothing to check.
_FITS = f"""
    (i.used + a.amount <= (i.total - i.reserved) * {_LIMIT}
     OR (i.resource_class = 'VCPU' AND i.total = 0))
    AND (i.available_least IS NULL
     OR a.amount <= i.available_least + i.total * ({_LIMIT} - 1))
"""


_NOT_ALL = 'division by zero'


class ClaimLost(Exception):
    """Somebody was faster; nothing of the batch is claimed."""


class Claim(NamedTuple):
    """What one consumer takes of one host.

    :ivar amounts: resource class -> amount
    :ivar ratios: resource class -> ratio to check under instead of the host's
    :ivar document: JSON, the instance's document less its place
    :ivar placement: JSON, what is answered for it
    :ivar known: whether the store has the instance already, without a claim
    :ivar group: uuid of the server group that the instance is to be in
    """

    consumer: str
    host_id: int
    host: str
    node: str
    amounts: Mapping[str, int]
    ratios: Mapping[str, float]
    project_id: str | None
    request_id: str | None
    document: str
    placement: str
    known: bool = False
    group: str | None = None


def take(
    writer: Writer,
    claims: Sequence[Claim],
    fallback: Mapping[str, float],
    policies: Collection[str] = (),
) -> None:
    """Claim for every consumer, or raise with nothing claimed.

    :param fallback: resource class -> configured ratio
    :param policies: of server groups that are to hold strictly
    :raises ClaimLost: one of them does not fit any more, or is there already
    """
    conn = writer.conn
    dialect = _dialect(conn)
    joining = {c.consumer: (c.group, c.host) for c in claims if c.group}
    if joining and not groups.join(writer, joining, policies):
        raise ClaimLost
    asked = _sums(claims, fallback)
    if asked:
        taken = conn.execute(_take(dialect), _parameters(dialect, asked))
        if taken.rowcount != len(asked):
            raise ClaimLost
    known = [one.consumer for one in claims if one.known]
    if known:
        table = schema.instances
        conn.execute(sa.delete(table).where(table.c.uuid.in_(known)))
    try:
        _insert(conn, dialect, 'instances', _INSTANCE, _instances(claims))
        held = _allocations(claims)
        if held:
            _insert(conn, dialect, 'allocations', _ALLOCATION, held)
    except db_exception.DBDuplicateEntry:
        raise ClaimLost from None
    writer.touched.load += sorted({one.host_id for one in claims})
    writer.touched.instances += [one.consumer for one in claims]


def claim(
    store: Store,
    conn: Connection,
    claims: Sequence[Claim],
    fallback: Mapping[str, float],
    policies: Collection[str] = (),
) -> int:
    """Claim for every consumer in one transaction; return its revision.

    :param policies: of server groups that are to hold strictly
    :param conn: a held connection that commits each statement by itself
    :raises ClaimLost: nothing is claimed
    :raises StoreUnavailable: it is not known whether anything is
    """
    plain = not any(one.known or one.group for one in claims)
    if plain and _dialect(conn) == 'postgresql':
        return store.once(lambda: _in_one_statement(conn, claims, fallback))

    def work(writer: Writer) -> Writer:
        take(writer, claims, fallback, policies)
        return writer

    return store.write(work).revision


def _in_one_statement(
    conn: Connection, claims: Sequence[Claim], fallback: Mapping[str, float]
) -> int:
    """Do all of :func:`take` and the seal in one round trip."""
    asked = _sums(claims, fallback)
    touched = Touched(
        load=sorted({one.host_id for one in claims}),
        instances=[one.consumer for one in claims],
    )
    parameters = {
        **_parameters('postgresql', asked),
        'instances': rows.pack(_instances(claims)),
        'allocations': rows.pack(_allocations(claims)),
        'touched': touched.to_json(),
        'now': time.time(),
    }
    try:
        found = conn.exec_driver_sql(_whole(), parameters)
        return int(found.scalar_one())
    except db_exception.DBDuplicateEntry:
        raise ClaimLost from None
    except db_exception.DBError as fault:
        if _NOT_ALL in str(fault):
            raise ClaimLost from None
        raise


def placements(
    conn: Connection, consumers: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return what was answered for consumers that hold a claim."""
    table = schema.instances
    query = sa.select(table.c.uuid, table.c.placement).where(
        table.c.uuid.in_(consumers), table.c.placement.is_not(None)
    )
    return {
        uuid: msgspec.json.decode(placement)
        for uuid, placement in conn.execute(query)
    }


def release(writer: Writer, consumers: Sequence[str]) -> list[str]:
    """Give back what consumers claimed; return those that held something.

    Doing it again changes nothing.
    """
    conn = writer.conn
    table = schema.allocations
    held = conn.execute(
        sa.select(table)
        .where(table.c.consumer_uuid.in_(consumers))
        .order_by(table.c.host_id, table.c.resource_class)
        .with_for_update()
    ).all()
    if held:
        _give_back(conn, held)
    inst = schema.instances
    mine = inst.c.uuid.in_(consumers) & (inst.c.state == 'claimed')
    gone = list(conn.execute(sa.select(inst.c.uuid).where(mine)).scalars())
    groups.leave(writer, gone)
    conn.execute(sa.delete(table).where(table.c.consumer_uuid.in_(consumers)))
    conn.execute(sa.delete(inst).where(mine))
    writer.touched.load += sorted({row.host_id for row in held})
    writer.touched.instances_gone += gone
    return sorted({row.consumer_uuid for row in held}.union(gone))


def _give_back(conn: Connection, held: Sequence[Any]) -> None:
    amounts: dict[tuple[int, str], int] = {}
    for row in held:
        key = row.host_id, row.resource_class
        amounts[key] = amounts.get(key, 0) - row.amount
    asked = [
        {'host_id': host, 'resource_class': name, 'amount': amount}
        for (host, name), amount in sorted(amounts.items())
    ]
    dialect = _dialect(conn)
    conn.execute(_move(dialect), _parameters(dialect, asked))


def _dialect(conn: Connection) -> str:
    name = conn.dialect.name
    return 'mysql' if name == 'mariadb' else name


def _asked(dialect: str) -> str:
    """Return SQL for the amounts asked, named ``a``.

    Of a limited query PostgreSQL expects few rows, and so looks each up by
    the key instead of reading the whole table.
    """
    source = rows.source(dialect, _ASK)
    if dialect != 'postgresql':
        return source
    limit = 'CAST(:expected AS integer)'
    return f'(SELECT * FROM {source} LIMIT {limit}) AS a'  # noqa: S608


def _parameters(
    dialect: str, asked: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the parameters of a statement on the amounts asked."""
    found: dict[str, Any] = {'rows': rows.pack(asked)}
    if dialect == 'postgresql':
        found['expected'] = len(asked)
    return found


@functools.cache
def _take(dialect: str) -> Any:
    """Return the statement that takes what still fits."""
    return sa.text(_update(dialect, f'AND {_FITS}'))


@functools.cache
def _move(dialect: str) -> Any:
    """Return the statement that moves use without a check, to give back."""
    return sa.text(_update(dialect, ''))


@functools.cache
def _whole() -> str:
    """Return PostgreSQL's statement for a claim: everything or an error.

    As the driver takes it: compiled once, it is the hottest of all.

    The counter comes after the inventories, as in every transaction. Where
    not every row could be taken the division fails, and with it all of it.
    """
    pg = 'postgresql'
    names, held = ', '.join(_INSTANCE), ', '.join(_ALLOCATION)
    statement = sa.text(f"""
        WITH b AS MATERIALIZED (
            SELECT a.* FROM {_asked(pg)}
            CROSS JOIN LATERAL (
                SELECT 1 FROM inventories AS i WHERE {_SAME} FOR UPDATE) AS l
        ), took AS (
            UPDATE inventories AS i SET {_TAKE} FROM b AS a
            WHERE {_SAME} AND {_FITS} RETURNING 1
        ), enough AS MATERIALIZED (
            SELECT 1 / (CASE WHEN count(*) = :expected THEN 1 ELSE 0 END)
                AS yes FROM took
        ), placed AS (
            INSERT INTO instances ({names})
            SELECT {names} FROM {rows.source(pg, _INSTANCE, 'instances')}
            WHERE (SELECT yes FROM enough) = 1
        ), held AS (
            INSERT INTO allocations ({held})
            SELECT {held} FROM {rows.source(pg, _ALLOCATION, 'allocations')}
            WHERE (SELECT yes FROM enough) = 1
        ), counted AS (
            UPDATE counters SET value = value + (SELECT yes FROM enough)
            WHERE name = '{REVISION}' RETURNING value
        )
        INSERT INTO changes (revision, touched, created_at)
        SELECT value, :touched, :now FROM counted RETURNING revision
    """)  # noqa: S608
    dialect: Any = psycopg.dialect
    return str(statement.compile(dialect=dialect()))


def _update(dialect: str, fits: str) -> str:
    source = _asked(dialect)
    if dialect == 'mysql':
        # The rows lead, in their order: that is the order of the locks.
        return (
            f'UPDATE {source} STRAIGHT_JOIN inventories AS i '  # noqa: S608
            f'ON {_SAME} {fits} SET i.used = i.used + a.amount, '
            'i.available_least = i.available_least - a.amount'
        )
    if dialect == 'postgresql':
        # Locked one by one in the order of the rows, by the key.
        return (
            f'WITH b AS MATERIALIZED (SELECT a.* FROM {source} '  # noqa: S608
            f'CROSS JOIN LATERAL (SELECT 1 FROM inventories AS i '
            f'WHERE {_SAME} FOR UPDATE) AS l) '
            f'UPDATE inventories AS i SET {_TAKE} FROM b AS a '
            f'WHERE {_SAME} {fits}'
        )
    return (
        f'UPDATE inventories AS i SET {_TAKE} FROM {source} '  # noqa: S608
        f'WHERE {_SAME} {fits}'
    )


@functools.cache
def _statement(
    dialect: str, table: str, columns: tuple[tuple[str, str], ...]
) -> Any:
    return rows.inserting(dialect, table, dict(columns))


def _insert(
    conn: Connection,
    dialect: str,
    table: str,
    columns: Mapping[str, str],
    values: Sequence[Mapping[str, Any]],
) -> None:
    statement = _statement(dialect, table, tuple(columns.items()))
    conn.execute(statement, {'rows': rows.pack(values)})


def _sums(
    claims: Sequence[Claim], fallback: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Add up what the claims take of each host and class, in fixed order."""
    sums: dict[tuple[int, str], dict[str, Any]] = {}
    for one in claims:
        for name, amount in one.amounts.items():
            row = sums.setdefault(
                (one.host_id, name),
                {
                    'host_id': one.host_id,
                    'resource_class': name,
                    'amount': 0,
                    'ratio': one.ratios.get(name),
                    'fallback': fallback.get(name, 1.0),
                },
            )
            row['amount'] += amount
    return [sums[key] for key in sorted(sums)]


def _allocations(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    return [
        {
            'consumer_uuid': one.consumer,
            'host_id': one.host_id,
            'resource_class': name,
            'amount': amount,
        }
        for one in claims
        for name, amount in one.amounts.items()
    ]


def _instances(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    now = time.time()
    return [
        {
            'uuid': one.consumer,
            'host': one.host,
            'node': one.node,
            'state': 'claimed',
            'project_id': one.project_id,
            'request_id': one.request_id,
            'document': one.document,
            'placement': one.placement,
            'created_at': now,
        }
        for one in claims
    ]
