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


def claiming(
    asked: Sequence[Sequence[Any]],
    instances: Sequence[Sequence[Any]],
    allocations: Sequence[Sequence[Any]],
) -> tuple[str, dict[str, Any]]:
    """Return PostgreSQL's statement for a claim, and its parameters.

    :param asked: in the order of :data:`ASK`
    :param instances: in the order of :data:`INSTANCE`
    :param allocations: in the order of :data:`ALLOCATION`

    Those of the change, ``touched`` and ``now``, are left to the caller.
    """
    if len(instances) > 1 or not asked:
        return _claiming(None), {
            **parameters('postgresql', asked),
            **rows.pack('postgresql', INSTANCE, instances, 'instances'),
            **rows.pack('postgresql', ALLOCATION, allocations, 'allocations'),
        }
    found = dict(zip(INSTANCE, instances[0], strict=True))
    found['expected'] = len(asked)
    for at, row in enumerate(asked):
        found.update(zip(_numbers(at), row, strict=True))
    return _claiming(len(asked)), found


@functools.cache
def _claiming(one: int | None) -> str:
    """Return the statement for a claim: everything or an error.

    It unfolds what is packed, or, for one instance, takes plain values.

    The counter comes after the inventories, as in every transaction. Where
    not every row could be taken the division fails, and with it all of it.

    :param one: how many resource classes one instance takes; None: packed
    """
    pg = 'postgresql'
    names, held = ', '.join(INSTANCE), ', '.join(ALLOCATION)
    if one is None:
        asked = _asked(pg)
        placed_rows = rows.source(pg, INSTANCE, 'instances')
        held_rows = rows.source(pg, ALLOCATION, 'allocations')
    else:
        asked = _first(_values(one, ASK, _numbered))
        placed_rows = _values(1, INSTANCE, lambda name, _: name)
        held_rows = _values(one, ALLOCATION, _allocated)
    return f"""
        WITH took AS (
            UPDATE inventories AS i SET {_TAKE} FROM {asked}
            WHERE {_IN_TURN} AND {_FITS} RETURNING 1
        ), enough AS MATERIALIZED (
            SELECT 1 / (CASE WHEN count(*) = :expected THEN 1 ELSE 0 END)
                AS yes FROM took
        ), placed AS (
            INSERT INTO instances ({names}) SELECT {names} FROM {placed_rows}
            WHERE (SELECT yes FROM enough) = 1
        ), held AS (
            INSERT INTO allocations ({held}) SELECT {held} FROM {held_rows}
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
