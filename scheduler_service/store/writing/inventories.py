"""Rows of inventories: what hosts offer, and aggregates for all their hosts.

Stateless: every function runs on the thread that owns the writing transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.model import Resource
from scheduler_service.store import schema
from scheduler_service.store.claims import claim_sql, lifecycle
from scheduler_service.store.driver_errors import TransactionOvertaken
from scheduler_service.store.reading.loading import MAX_UNIT
from scheduler_service.store.rows import insert, select_in

_OFFERED = schema.inventories
_KEY = ('host_id', 'resource_class')
_FIGURES = (
    'total',
    'reserved',
    'min_unit',
    'max_unit',
    'step_size',
    'allocation_ratio',
    'available_least',
)


def row(store_id: int, name: str, offer: Resource) -> dict[str, Any]:
    """Return the row of a resource class."""
    return {
        **msgspec.structs.asdict(offer),
        'host_id': store_id,
        'resource_class': name,
        'max_unit': offer.max_unit or MAX_UNIT,
        'reported': offer.used,
        'available_least': None,
    }


def without(
    offered: Mapping[str, Resource], claimed: Counter[str]
) -> dict[str, Resource]:
    """Return resources with use that excludes what is claimed of them."""
    return {
        name: msgspec.structs.replace(
            offer, used=max(offer.used - claimed[name], 0)
        )
        for name, offer in offered.items()
    }


def change(
    conn: Connection, ids: Sequence[int], rows: Iterable[dict[str, Any]]
) -> None:
    """Write what is offered under some ids, and nothing else is any more.

    Claims stay allocated. Another change of the same ids waits for this one.

    :raises TransactionOvertaken: the last claim of what was not offered any
        more was released meanwhile
    """
    key = _OFFERED.c.host_id, _OFFERED.c.resource_class
    stored = {
        tuple(row) for row in select_in(conn, sa.select(*key), key[0], ids)
    }
    offered = {tuple(row[name] for name in _KEY): row for row in rows}
    gone = sorted(stored - offered.keys())
    changed = [row for name, row in offered.items() if name in stored]
    changed += [claim_sql.not_offered(*name) for name in gone]
    if update(conn, changed, _FIGURES) != len(changed):
        raise TransactionOvertaken
    if gone:
        lifecycle.drop_unused(conn, gone)
    # Last: nobody that waits for these rows holds one that is yet to change.
    insert(
        conn,
        _OFFERED,
        (row for name, row in offered.items() if name not in stored),
    )


def update(
    conn: Connection,
    changed: Sequence[Mapping[str, Any]],
    names: Sequence[str],
) -> int:
    """Write some columns of rows that are stored, and their use.

    Use is changed relative to the stored value: claims may change it at the
    same time. All writers lock rows in the same order.

    :return: how many of the rows there are
    """
    if not changed:
        return 0
    table = _OFFERED
    reported: Any = sa.bindparam('b_reported')
    result = conn.execute(
        sa.update(table)
        .where(*(table.c[name] == sa.bindparam(f'b_{name}') for name in _KEY))
        # ``used`` before ``reported``: MariaDB assigns from left to right.
        .ordered_values(
            *((table.c[name], sa.bindparam(f'b_{name}')) for name in names),
            (table.c.used, table.c.used - table.c.reported + reported),
            (table.c.reported, reported),
        ),
        [
            {f'b_{name}': row[name] for name in (*_KEY, *names, 'reported')}
            for row in sorted(changed, key=lambda row: [row[n] for n in _KEY])
        ],
    )
    return result.rowcount
