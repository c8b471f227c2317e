"""The SQL of claims, in the dialect of each database."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from scheduler_service.store import rows
from scheduler_service.store.connection import REVISION

# What is asked of an inventory. The ratio is to check under instead of the
# host's; the fallback where the host has none.
ASK = {
    'host_id': 'int',
    'resource_class': 'text',
    'amount': 'int',
    'ratio': 'float',
    'fallback': 'float',
}
ALLOCATION = {
    'consumer_uuid': 'text',
    'host_id': 'int',
    'resource_class': 'text',
    'amount': 'int',
}
# Where one of many instances goes; what it takes there is of a kind.
PLACE = {
    'uuid': 'text',
    'host_id': 'int',
    'kind': 'int',
    'host': 'text',
    'node': 'text',
    'project_id': 'text',
    'request_id': 'text',
    'document': 'text',
    'placement': 'text',
}
# What instances of a kind take of one class.
KIND = {
    'kind': 'int',
    'resource_class': 'text',
    'amount': 'int',
    'ratio': 'float',
    'fallback': 'float',
}
INSTANCE = {
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
# Said like this PostgreSQL can neither hash nor sort to join, whatever it
# thinks of the tables: row by row of what is asked, by the key. So rows are
# locked in the order that they are asked in.
_IN_TURN = (
    'i.host_id = ANY(ARRAY[a.host_id]) '
    'AND i.resource_class = ANY(ARRAY[a.resource_class])'
)
_LIMIT = 'COALESCE(a.ratio, NULLIF(i.allocation_ratio, 0), a.fallback)'
# No vCPUs at all: the host's figures are not collected, nothing to check.
_FITS = f"""
    (i.used + a.amount <= (i.total - i.reserved) * {_LIMIT}
     OR (i.resource_class = 'VCPU' AND i.total = 0))
    AND (i.available_least IS NULL
     OR a.amount <= i.available_least + i.total * ({_LIMIT} - 1))
"""
# What the database says where not every row could be taken: a division by
# zero; and where somebody has the instance already.
LOST = ('22012', '23505')


def _asked(dialect: str) -> str:
    """Return SQL for the amounts asked, named ``a``.

    On PostgreSQL they are limited, see :func:`_first`.
    """
    source = rows.source(dialect, ASK)
    return _first(source) if dialect == 'postgresql' else source


def _first(source: str) -> str:
    """Return SQL for the rows of *source*, limited to all of them.

    Of a limited query PostgreSQL expects few rows: so they lead, and each
    is looked up by the key instead of reading the whole table.
    """
    limit = 'CAST(:expected AS integer)'
    return f'(SELECT * FROM {source} LIMIT {limit}) AS a'  # noqa: S608


def parameters(dialect: str, asked: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return the parameters of a statement on the amounts asked.

    :param asked: in the order of :data:`ASK`
    """
    found = rows.pack(dialect, ASK, asked)
    if dialect == 'postgresql':
        found['expected'] = len(asked)
    return found


@functools.cache
def taking(dialect: str) -> Any:
    """Return the statement that takes what still fits."""
    return sa.text(_update(dialect, f'AND {_FITS}'))


@functools.cache
def moving(dialect: str) -> Any:
    """Return the statement that moves use without a check, to give back."""
    return sa.text(_update(dialect, ''))


def claiming_one(
    asked: Sequence[Sequence[Any]], instance: Sequence[Any]
) -> tuple[str, dict[str, Any]]:
    """Return PostgreSQL's statement for one claim, and its parameters.

    :param asked: in the order of :data:`ASK`
    :param instance: in the order of :data:`INSTANCE`

    Those of the change, ``touched`` and ``now``, are left to the caller.
    """
    found = dict(zip(INSTANCE, instance, strict=True))
    found['expected'] = len(asked)
    for at, row in enumerate(asked):
        found.update(zip(_numbers(at), row, strict=True))
    return _claiming_one(len(asked)), found


def claiming_many(
    places: Sequence[Sequence[Any]], kinds: Sequence[Sequence[Any]]
) -> tuple[str, dict[str, Any]]:
    """Return PostgreSQL's statement for claims, and its parameters.

    :param places: in the order of :data:`PLACE`
    :param kinds: in the order of :data:`KIND`

    Those of the change, ``touched`` and ``now``, are left to the caller.
    """
    return _claiming_many(), {
        **rows.pack('postgresql', PLACE, places, 'places'),
        **rows.pack('postgresql', KIND, kinds, 'kinds'),
        'expected': len(places) * len(kinds),
    }


@functools.cache
def _claiming_one(classes: int) -> str:
    """Return the statement for one instance, of plain values.

    :param classes: how many resource classes it takes
    """
    return _claiming(
        asked=_values(classes, ASK, _numbered),
        instances=f'SELECT {", ".join(INSTANCE)} FROM '  # noqa: S608
        + _values(1, INSTANCE, lambda name, _: name),
        allocations=f'SELECT {", ".join(ALLOCATION)} FROM '  # noqa: S608
        + _values(classes, ALLOCATION, _allocated),
        count=':expected',
    )


@functools.cache
def _claiming_many() -> str:
    """Return the statement for many instances, of what is packed.

    What they take of each host is added up, in the order that every
    transaction takes rows in.
    """
    unpacked = f"""
        places AS MATERIALIZED (
            SELECT * FROM {rows.source('postgresql', PLACE, 'places')}
        ), kinds AS MATERIALIZED (
            SELECT * FROM {rows.source('postgresql', KIND, 'kinds')}
        ), asked AS MATERIALIZED (
            SELECT host_id, resource_class,
                CAST(sum(amount) AS bigint) AS amount,
                min(ratio) AS ratio, min(fallback) AS fallback
            FROM places JOIN kinds USING (kind)
            GROUP BY host_id, resource_class
            ORDER BY host_id, resource_class COLLATE "C"
        ),
    """  # noqa: S608
    return _claiming(
        asked='asked',
        instances="""
            SELECT uuid, host, node, 'claimed', project_id, request_id,
                document, placement, CAST(:now AS double precision)
            FROM places
        """,
        allocations="""
            SELECT uuid, host_id, resource_class, amount
            FROM places JOIN kinds USING (kind)
        """,
        count='(SELECT count(*) FROM asked)',
        unpacked=unpacked,
    )


def _claiming(
    asked: str,
    instances: str,
    allocations: str,
    count: str,
    unpacked: str = '',
) -> str:
    """Return a statement that claims everything or is an error.

    The counter comes after the inventories, as in every transaction. Where
    not every row could be taken the division fails, and with it all of it.

    :param asked: SQL for the rows of :data:`ASK`
    :param instances: a query for those of :data:`INSTANCE`
    :param allocations: a query for those of :data:`ALLOCATION`
    :param count: SQL for how many are asked
    :param unpacked: SQL for what these are made of
    """
    return f"""
        WITH {unpacked} took AS (
            UPDATE inventories AS i SET {_TAKE} FROM {_first(asked)}
            WHERE {_IN_TURN} AND {_FITS} RETURNING 1
        ), enough AS MATERIALIZED (
            SELECT 1 / (CASE WHEN count(*) = {count} THEN 1 ELSE 0 END)
                AS yes FROM took
        ), placed AS (
            INSERT INTO instances ({', '.join(INSTANCE)}) {instances}
            WHERE (SELECT yes FROM enough) = 1
        ), held AS (
            INSERT INTO allocations ({', '.join(ALLOCATION)}) {allocations}
            WHERE (SELECT yes FROM enough) = 1
        ), counted AS (
            UPDATE counters SET value = value + (SELECT yes FROM enough)
            WHERE name = '{REVISION}' RETURNING value
        )
        INSERT INTO changes (revision, touched, created_at)
        SELECT value, :touched, :now FROM counted RETURNING revision
    """  # noqa: S608


@functools.cache
def _numbers(at: int) -> list[str]:
    """Return the parameters that a row of what is asked is in."""
    return [_numbered(name, at) for name in ASK]


def _numbered(name: str, at: int) -> str:
    return f'{name}_{at}'


def _allocated(name: str, at: int) -> str:
    """Return the parameter that an allocation's column is in."""
    return 'uuid' if name == 'consumer_uuid' else _numbered(name, at)


def _values(
    count: int,
    columns: Mapping[str, str],
    parameter: Callable[[str, int], str],
) -> str:
    """Return SQL for rows of single parameters, named ``a``.

    :param parameter: names the one of a column in a row
    """
    listed = ', '.join(
        '('
        + ', '.join(
            f'CAST(:{parameter(name, at)} AS {rows.POSTGRESQL[kind]})'
            for name, kind in columns.items()
        )
        + ')'
        for at in range(count)
    )
    return f'(VALUES {listed}) AS a({", ".join(columns)})'


def _update(dialect: str, fits: str) -> str:
    source = _asked(dialect)
    if dialect == 'mysql':
        # The rows lead, in their order: that is the order of the locks.
        return (
            f'UPDATE {source} STRAIGHT_JOIN inventories AS i '  # noqa: S608
            f'ON {_SAME} {fits} SET i.used = i.used + a.amount, '
            'i.available_least = i.available_least - a.amount'
        )
    same = _IN_TURN if dialect == 'postgresql' else _SAME
    return (
        f'UPDATE inventories AS i SET {_TAKE} FROM {source} '  # noqa: S608
        f'WHERE {same} {fits}'
    )
