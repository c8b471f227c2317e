"""Claims, and the SQL that takes and gives back capacity, by dialect.

Stateless: any thread may call it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import rows, schema

# The demand on an inventory. The claim is checked under ``ratio`` instead
# of the host's own, and under ``fallback`` where the host has none or 0.
DEMAND = {
    'host_id': 'int',
    'resource_class': 'text',
    'amount': 'int',
    'ratio': 'float',
    'fallback': 'float',
}
# The key of an allocation.
HELD = {'consumer_uuid': 'text', 'host_id': 'int', 'resource_class': 'text'}
ALLOCATION = {**HELD, 'amount': 'int'}
# The key of an inventory.
INVENTORY = {'host_id': 'int', 'resource_class': 'text'}
# It is not offered, and no claim holds any of it.
UNUSED = 'max_unit = 0 AND used = reported'
# Beside these columns an instance has the time of its claim.
INSTANCE = dict.fromkeys(
    ('uuid', 'host', 'node', 'state', 'kind', 'project_id', 'request_id',
     'document', 'placement', 'idempotency_key'),
    'text',
)  # fmt: skip
# The key of a membership of a server group.
MEMBER = {'group_uuid': 'text', 'instance_uuid': 'text'}
# So many rows of inventories at most are changed at once.
MOST = 1_000_000
# An inventory, and the demand on it.
SAME_ROW = {'i.host_id': 'a.host_id', 'i.resource_class': 'a.resource_class'}
TAKE = (
    'used = i.used + a.amount, available_least = i.available_least - a.amount'
)
# The rule of allocation ratios: see ``ResourceColumns.capacity``. ``a.ratio``
# is that of an aggregate, ``a.fallback`` the default of the class.
_CAPACITY = """((i.total - i.reserved)
    * COALESCE(a.ratio, NULLIF(i.allocation_ratio, 0), a.fallback))"""
# What takes nothing fits. A host with 0 vCPUs does not collect these figures:
# nothing is checked. Disk that is not available, as measured, is in use. Whole
# numbers alone are added up, so that rounding gives the same result here as in
# the filters.
FITS = f"""
    (a.amount = 0 OR (i.resource_class = 'VCPU' AND i.total = 0)
     OR (i.used + a.amount <= {_CAPACITY}
      AND COALESCE(i.total - i.available_least, i.used) + a.amount
          <= {_CAPACITY}))
"""


# A consumer, a host and a resource class.
Held = tuple[str, int, str]


class Claim(msgspec.Struct, frozen=True):
    """The amounts that a consumer takes of a host.

    :ivar amounts: resource class -> amount
    :ivar ratios: resource class -> allocation ratio to check under instead
        of the host's own
    :ivar document: JSON, the instance's document without its place
    :ivar placement: JSON, the placement that its caller gets
    :ivar is_present: whether the store has the instance already, without a
        claim
    :ivar group: uuid of the server group that the instance is to be in
    :ivar group_owner: project of the group when the hosts were read, which
        was checked; empty: it had none; None: there was no such group
    :ivar move: whether this is a second claim, beside the instance's present
        place
    :ivar may_stay: whether a second claim may be on the host of the first
    :ivar key: idempotency key of the request; None: it has none
    :ivar records: what stages record with the claim: the name of each, and
        JSON of what it is about to do
    :ivar releases_seen: revision up to which releases of the consumer do not
        cancel the request
    :ivar kind: ``instance`` or ``pod``
    :ivar shared: resource class -> what the claim takes it from instead of
        the host: an aggregate, see :func:`provider_of`
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
    is_present: bool = False
    group: str | None = None
    group_owner: str | None = ''
    move: bool = False
    may_stay: bool = False
    key: str | None = None
    records: Sequence[tuple[str, str]] = ()
    releases_seen: int = 0
    kind: str = 'instance'
    shared: Mapping[str, int] = {}

    def parts(self) -> list[tuple[int, Mapping[str, int]]]:
        """Return what it takes of the host, and of each aggregate."""
        if not self.shared:
            return [(self.host_id, self.amounts)]
        parts: dict[int, dict[str, int]] = {}
        for name, amount in self.amounts.items():
            provider = self.shared.get(name, self.host_id)
            parts.setdefault(provider, {})[name] = amount
        return [*parts.items()]


def not_offered(provider: int, name: str) -> dict[str, Any]:
    """Return the row of a class that claims hold and that is not offered."""
    return {'host_id': provider, 'resource_class': name, 'total': 0,
            'reserved': 0, 'min_unit': 1, 'max_unit': 0, 'step_size': 1,
            'allocation_ratio': None, 'reported': 0,
            'available_least': None}  # fmt: skip


def is_of_aggregate(table: Any) -> Any:
    """Return the condition that a row of inventories or allocations is.

    See :func:`~scheduler_service.model.inventory.provider_of`.
    """
    return schema.aggregates.c.id == -1 - table.c.host_id


def promised(
    placement: str | None, host_id: int
) -> dict[tuple[int, str], int] | None:
    """Return what a claim took, by host or aggregate and resource class.

    :param placement: JSON, as it is stored with the claim
    :param host_id: of the claim
    :return: None: it is unknown
    """
    stored = msgspec.json.decode(placement or '{}')
    if stored.get('amounts') is None:
        return None
    shared = stored.get('shared', {})
    return {
        (shared.get(name, host_id), name): amount
        for name, amount in stored['amounts'].items()
    }


def join_groups(conn: Connection, members: Sequence[tuple[str, str]]) -> int:
    """Add members that groups lack; return how many.

    It waits for a transaction that is about to delete a membership.

    :param members: (group, instance) pairs, at least one
    """
    return rows.insert_packed(
        conn, 'server_group_members', MEMBER, members, key=(*MEMBER,)
    )


def instance_row(claim: Claim) -> tuple[Any, ...]:
    """Return a row in the order of :data:`INSTANCE`."""
    return (
        claim.consumer,
        claim.host,
        claim.node,
        'claimed',
        claim.kind,
        claim.project_id,
        claim.request_id,
        claim.document,
        claim.placement,
        claim.key,
    )


def add_use(conn: Connection, amounts: Mapping[tuple[int, str], int]) -> int:
    """Add amounts to use, also where there is no room; negative: less use.

    In the order in which every transaction takes rows of inventories.

    :param amounts: by host or aggregate, and resource class
    :return: how many of the rows there are
    """
    dialect = conn.dialect.name
    demand = [(*key, n, None, None) for key, n in sorted(amounts.items())]
    values = rows.pack(dialect, DEMAND, demand)
    values['expected'] = len(demand)
    change = change_use(dialect, where_it_fits=False)
    return conn.execute(change, values).rowcount


@functools.cache
def change_use(dialect: str, where_it_fits: bool) -> sa.TextClause:
    """Return the statement that adds amounts to use; negative: less use.

    :param where_it_fits: change only the rows with so much capacity left
    """
    return changing_use(dialect, rows.source(dialect, DEMAND), where_it_fits)


def changing_use(
    dialect: str, source: str, where_it_fits: bool
) -> sa.TextClause:
    """Return the statement that adds the amounts of the rows of *source*.

    :param source: SQL for a table ``a`` with the columns of :data:`DEMAND`
    """
    fits = f'AND {FITS}' if where_it_fits else ''
    # Looked up in the order of the amounts, so rows are locked in that order.
    same_row = rows.equal(dialect, SAME_ROW)
    if dialect == 'mysql':
        return sa.text(
            f'UPDATE {source} STRAIGHT_JOIN inventories AS i '  # noqa: S608
            f'ON {same_row} {fits} SET {TAKE}'
        )
    if dialect == 'postgresql':
        # It expects few rows of a query with a limit, and starts with them.
        limit = 'LIMIT CAST(:expected AS integer)'
        source = f'(SELECT * FROM {source} {limit}) AS a'  # noqa: S608
    return sa.text(
        f'UPDATE inventories AS i SET {TAKE} FROM {source} '  # noqa: S608
        f'WHERE {same_row} {fits}'
    )
