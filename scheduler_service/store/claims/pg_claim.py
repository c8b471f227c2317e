"""All claims of a batch in one round trip, for PostgreSQL alone.

Stateless: any thread may build the statements. They do what
``transaction.claim_all`` does and what ends a writing transaction: take
capacity, check and join server groups, insert instances and allocations, take
the next revision, append the change record. That is one statement, and one
before it where server groups have to be locked (see ``pg_group_sql``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from scheduler_service.store import clock, postgresql, rows
from scheduler_service.store.claims import claim_sql, pg_group_sql
from scheduler_service.store.claims.pg_statements import BoundStatement
from scheduler_service.store.claims.transaction import (
    Claim,
    ask_rows,
    group_owners,
    instance_rows,
)
from scheduler_service.store.connection import REVISION, ChangeRecord

# States of a statement that claims nothing: a division by zero, where not
# every row could be taken or a policy does not hold; and a key that is there
# already, where a consumer holds a claim.
LOST = ('22012', '23505')
# As a query of its own it is evaluated once, not for each row.
_NOW = f'(SELECT {clock.sql("postgresql")})'
# The place of one instance. What it takes there is in the rows of its kind.
_PLACE = {
    'uuid': 'text',
    'host_id': 'int',
    'kind': 'int',
    'host': 'text',
    'node': 'text',
    'project_id': 'text',
    'request_id': 'text',
    'document': 'text',
    'placement': 'text',
    'idempotency_key': 'text',
}
_GROUPED_PLACE = {**_PLACE, 'group_uuid': 'text'}
# What each instance of a kind takes of one resource class.
_KIND = {
    'kind': 'int',
    'resource_class': 'text',
    'amount': 'int',
    'ratio': 'float',
    'fallback': 'float',
}


def statements(
    claims: Sequence[Claim],
    fallback: Mapping[str, float],
    policies: Collection[str],
    lineage: str,
) -> list[BoundStatement]:
    """Return the statements that make all claims, or fail with all.

    :param claims: for instances that the store does not know yet
    :param fallback: resource class -> allocation ratio of hosts without one
    :param policies: server group policies that a claim must not break
    :param lineage: the token of the change
    """
    touched = ChangeRecord(
        load=sorted({claim.host_id for claim in claims}),
        instances=[claim.consumer for claim in claims],
    )
    values: dict[str, Any] = {
        'touched': touched.to_json(),
        'lineage': lineage,
    }
    groups = sorted({claim.group for claim in claims if claim.group})
    if groups:
        values.update(_values_of_many(claims, fallback, _GROUPED_PLACE))
        values['groups'] = postgresql.TextColumn(groups)
        owners = group_owners(claims)
        values['owners'] = postgresql.TextColumn(map(owners.get, groups))
        values['policies'] = postgresql.TextColumn(policies)
        return [
            BoundStatement.of(pg_group_sql.LOCK, values),
            BoundStatement.of(_claim_grouped(), values),
        ]
    if len(claims) == 1 and claims[0].amounts:
        asked = ask_rows(claims, fallback)
        values.update(_values_of_one(asked, *instance_rows(claims)))
        return [BoundStatement.of(_claim_one(len(asked)), values)]
    values.update(_values_of_many(claims, fallback, _PLACE))
    return [BoundStatement.of(_claim_many(), values)]


def _values_of_one(
    asked: Sequence[Sequence[Any]], instance: Sequence[Any]
) -> dict[str, Any]:
    """Return the parameters of :func:`_claim_one`.

    :param asked: rows in the order of ``claim_sql.ASK``
    :param instance: a row in the order of ``claim_sql.INSTANCE``
    """
    values = dict(zip(claim_sql.INSTANCE, instance, strict=True))
    values['expected'] = len(asked)
    for at, row in enumerate(asked):
        values.update(zip(_names_in_row(at), row, strict=True))
    return values


def _values_of_many(
    claims: Sequence[Claim],
    fallback: Mapping[str, float],
    columns: Mapping[str, str],
) -> dict[str, Any]:
    """Return the parameters of :func:`_claim_many`.

    Instances that take the same amounts are of one kind: most of a batch
    have one of a few flavors.

    :param columns: of ``places``
    """
    kinds: dict[Any, int] = {}
    places = []
    for claim in claims:
        what = (*claim.amounts.items(),), (*claim.ratios.items(),)
        kind = kinds.setdefault(what, len(kinds))
        places.append(
            (
                claim.consumer,
                claim.host_id,
                kind,
                claim.host,
                claim.node,
                claim.project_id,
                claim.request_id,
                claim.document,
                claim.placement,
                claim.key,
                claim.group,
            )[: len(columns)]
        )
    kind_rows = [
        (kind, name, amount, dict(ratios).get(name), fallback.get(name, 1.0))
        for (amounts, ratios), kind in kinds.items()
        for name, amount in amounts
    ]
    return {
        **rows.pack('postgresql', columns, places, 'places'),
        **rows.pack('postgresql', _KIND, kind_rows, 'kinds'),
        'expected': len(places) * len(kind_rows),
    }


@functools.cache
def _claim_one(classes: int) -> str:
    """Return the statement for one instance, with scalar parameters.

    :param classes: how many resource classes it takes
    """
    instance = ', '.join(claim_sql.INSTANCE)
    allocation = ', '.join(claim_sql.ALLOCATION)
    return _claim(
        asked=_values(classes, claim_sql.ASK, _name_in_row),
        instances=f'SELECT {instance}, {_NOW} FROM '  # noqa: S608
        + _values(1, claim_sql.INSTANCE, lambda name, _: name),
        allocations=f'SELECT {allocation} FROM '  # noqa: S608
        + _values(classes, claim_sql.ALLOCATION, _allocation_name),
        count=':expected',
    )


@functools.cache
def _claim_many() -> str:
    """Return the statement for many instances, with array parameters."""
    return _claim(
        asked='asked',
        instances=_INSTANCES_OF_MANY,
        allocations=_ALLOCATIONS_OF_MANY,
        count='(SELECT count(*) FROM asked)',
        unpacked=_unpacked(_PLACE),
    )


@functools.cache
def _claim_grouped() -> str:
    """Return the statement for many instances, some of server groups."""
    return _claim(
        asked='asked',
        instances=_INSTANCES_OF_MANY,
        allocations=_ALLOCATIONS_OF_MANY,
        count='(SELECT count(*) FROM asked)',
        unpacked=_unpacked(_GROUPED_PLACE) + pg_group_sql.SEATS,
        allowed=pg_group_sql.MAY_JOIN,
        joined=pg_group_sql.JOINED,
        touched=pg_group_sql.TOUCHED,
    )


_INSTANCES_OF_MANY = f"""
    SELECT uuid, host, node, 'claimed', project_id, request_id, document,
        placement, idempotency_key, {_NOW}
    FROM places
"""  # noqa: S608
_ALLOCATIONS_OF_MANY = """
    SELECT uuid, host_id, resource_class, amount
    FROM places JOIN kinds USING (kind)
"""


def _unpacked(columns: Mapping[str, str]) -> str:
    """Return common table expressions for array parameters.

    ``asked`` adds up what the instances take of each host, in the order in
    which every transaction takes inventory rows.

    :param columns: of ``places``
    """
    return f"""
        places AS MATERIALIZED (
            SELECT * FROM {rows.source('postgresql', columns, 'places')}
        ), kinds AS MATERIALIZED (
            SELECT * FROM {rows.source('postgresql', _KIND, 'kinds')}
        ), asked AS MATERIALIZED (
            SELECT host_id, resource_class,
                CAST(sum(amount) AS bigint) AS amount,
                min(ratio) AS ratio, min(fallback) AS fallback
            FROM places JOIN kinds USING (kind)
            GROUP BY host_id, resource_class
            ORDER BY host_id, resource_class COLLATE "C"
        ),
    """  # noqa: S608


def _claim(
    asked: str,
    instances: str,
    allocations: str,
    count: str,
    unpacked: str = '',
    allowed: str = 'true',
    joined: str = '',
    touched: str = ':touched',
) -> str:
    """Return a statement that makes all claims or fails.

    The counter comes after the inventories, as in every transaction. Where
    not every row could be taken the division by zero fails, and with it the
    whole statement.

    :param asked: SQL for rows of ``claim_sql.ASK``
    :param instances: a query for rows of ``claim_sql.INSTANCE`` and the time
    :param allocations: a query for rows of ``claim_sql.ALLOCATION``
    :param count: SQL for the number of rows that are asked for
    :param unpacked: common table expressions that the others use
    :param allowed: a condition on which all claims depend
    :param joined: a common table expression that joins server groups
    :param touched: SQL for the change record
    """
    return f"""
        WITH {unpacked} took AS (
            UPDATE inventories AS i SET {claim_sql.TAKE}
            FROM {claim_sql.pg_limited(asked)}
            WHERE {claim_sql.PG_SAME_ROW_IN_ORDER} AND {claim_sql.FITS}
            RETURNING 1
        ), enough AS MATERIALIZED (
            SELECT 1 / (CASE WHEN count(*) = {count} AND {allowed}
                THEN 1 ELSE 0 END) AS yes
            FROM took
        ), {joined} placed AS (
            INSERT INTO instances
                ({', '.join(claim_sql.INSTANCE)}, created_at) {instances}
            WHERE (SELECT yes FROM enough) = 1
        ), held AS (
            INSERT INTO allocations ({', '.join(claim_sql.ALLOCATION)})
            {allocations} WHERE (SELECT yes FROM enough) = 1
        ), counted AS (
            UPDATE counters SET value = value + (SELECT yes FROM enough)
            WHERE name = '{REVISION}' RETURNING value
        )
        INSERT INTO changes (revision, touched, lineage, created_at)
        SELECT value, {touched}, :lineage, {_NOW} FROM counted
        RETURNING revision
    """  # noqa: S608


@functools.cache
def _names_in_row(at: int) -> list[str]:
    """Return the parameters of one row of ``claim_sql.ASK``."""
    return [_name_in_row(name, at) for name in claim_sql.ASK]


def _name_in_row(name: str, at: int) -> str:
    return f'{name}_{at}'


def _allocation_name(name: str, at: int) -> str:
    """Return the parameter of one column of an allocation."""
    return 'uuid' if name == 'consumer_uuid' else _name_in_row(name, at)


def _values(
    count: int,
    columns: Mapping[str, str],
    parameter: Callable[[str, int], str],
) -> str:
    """Return SQL for a table ``a`` of scalar parameters.

    :param count: how many rows
    :param parameter: returns the parameter of a column in a row
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
