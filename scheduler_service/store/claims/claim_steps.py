"""What makes a batch of claims: one list of statements, each with its guard.

A claim takes capacity only where it still fits. A row that a statement did
not change means that another claim was faster: then all claims of the batch
are lost. Stateless: any thread may build a list.

``ClaimBatch.make`` executes a list statement by statement, ``pg_claims`` sends
it in one round trip. No statement depends on what Python read of another's
result, so both do the same. Rows are locked in one fixed order, so batches
wait for each other and do not deadlock: instances that are stored, server
groups, new instances, records of stages, inventories (of aggregates first,
since their ids are below 0), the counter.

Whoever has the counter sees everything that was committed before, and nobody
commits until the transaction ends: a release that is committed later finds
these claims. Therefore whatever another transaction may have changed is
looked at only then: releases, outcomes, and the server groups with the places
of their members. These statements wait for no lock.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.engine.ports import ClaimLost
from scheduler_service.store import clock, rows, schema
from scheduler_service.store.claims import (
    claim_sql,
    lifecycle,
    outcomes,
    stage_records,
)
from scheduler_service.store.claims.claim_sql import Claim
from scheduler_service.store.connection import ChangeRecord

_STRICT = ('affinity', 'anti-affinity')
_GROUPS = schema.server_groups
_LOCK_GROUPS = (
    sa.select(_GROUPS.c.uuid)
    .where(rows.among(_GROUPS.c.uuid))
    .order_by(_GROUPS.c.uuid)
    .with_for_update()
)
_MOVE = {
    'instance_uuid': 'text',
    'host_id': 'int',
    'host': 'text',
    'node': 'text',
    'request_id': 'text',
    'placement': 'text',
    'idempotency_key': 'text',
    'may_stay': 'int',
}
# What a claim takes alone, and holds then.
_TAKEN = {**claim_sql.DEMAND, 'consumer_uuid': 'text'}
# Where each claim is, and what claims of a size take: a batch has few flavors.
# ``adds`` is 1 where what a consumer holds of the host already does not count.
_PLACED = {'consumer_uuid': 'text', 'host_id': 'int', 'size': 'int'}
_SIZE = {
    'size': 'int',
    'resource_class': 'text',
    'amount': 'int',
    'ratio': 'float',
    'fallback': 'float',
    'adds': 'int',
}
# Where an instance is claimed; ``stored`` is 1 where it was stored before,
# and ``written`` where the new place is written already.
_PLACE = {
    'uuid': 'text',
    'host': 'text',
    'stored': 'int',
    'written': 'int',
    'group_uuid': 'text',
}
_UUID = {'uuid': 'text'}
_OWNER = {'uuid': 'text', 'owner': 'text'}
_GROUP_OF_CLAIM = {'uuid': 'a.group_uuid'}
_consumer, _host_id, _group, _amounts, _records = map(
    operator.attrgetter,
    ('consumer', 'host_id', 'group', 'amounts', 'records'),
)


_BREAKS_POLICY = 'The host would break the policy of server group {}.'


class Step(NamedTuple):
    """A statement, and what has to hold for the claims to be made.

    :ivar values: of its parameters
    :ivar changes: the number of rows that it has to change; None: any
    :ivar refuses: whether it is a query, and any row that it finds means that
        the claims are lost
    :ivar why: why they are lost, as a sentence with a place for the text that
        the query finds
    """

    statement: Any
    values: Mapping[str, Any]
    changes: int | None = None
    refuses: bool = False
    why: str = ''

    def execute(self, conn: Connection) -> None:
        """Execute the statement by itself.

        :raises ClaimLost: the transaction has to be rolled back
        """
        result = conn.execute(self.statement, self.values)
        if self.refuses:
            found = result.first()
            if found is not None:
                raise ClaimLost(self.why.format(*found))
        elif self.changes not in (None, result.rowcount):
            raise ClaimLost


class Steps(NamedTuple):
    """The statements of a batch of claims, in their order.

    :ivar before: until the counter is taken
    :ivar hold: inserts allocations, if any, with the change record or before:
        nobody waits for them, since nobody else has their instances
    :ivar touched: what they change
    :ivar more: query of more keys that they change -> its parameters; what
        the keys are is its field in the change record. It is executed before
        the counter is taken
    :ivar after: once it is; the last one has no :attr:`Step.why`
    """

    before: list[Step]
    hold: Step | None
    touched: ChangeRecord
    more: dict[str, Step]
    after: list[Step]


def steps(
    dialect: str,
    claims: Sequence[Claim],
    fallback: Mapping[str, float],
    policies: Collection[str],
) -> Steps:
    """Return the statements that make all claims, or none.

    :param fallback: resource class -> allocation ratio of hosts without one
    :param policies: server group policies that a claim must not break
    """
    placed: list[Claim] = []
    moving: list[Claim] = []
    reported: list[Claim] = []
    for claim in claims:
        known = reported if claim.is_present else placed
        (moving if claim.move else known).append(claim)
    groups = sorted({*filter(None, map(_group, claims))})
    before = [*_inserts(dialect, placed, moving, reported, groups)]
    if any(map(_records, claims)):
        before.append(_recording(dialect, claims))
    hold = None
    if any(map(_amounts, claims)):
        stays = any(claim.may_stay or claim.shared for claim in moving)
        take, hold = _taking(dialect, claims, fallback, stays)
        before.append(take)
    touched = ChangeRecord(
        load=sorted(
            {*map(_host_id, claims)}.union(
                *(claim.shared.values() for claim in claims if claim.shared)
            )
        ),
        instances=[*map(_consumer, claims)],
    )
    more = {}
    for field, query, uuids in (
        ('load', _leaving(dialect), map(_consumer, reported)),
        ('groups', _existing(dialect), groups),
    ):
        if keys := [*zip(uuids)]:
            values = rows.pack(dialect, _UUID, keys, field)
            more[field] = Step(query, values)
    after = [*_joins(dialect, claims, groups, policies)]
    for claim in reported:
        row = claim_sql.instance_row(claim)
        values = dict(zip(claim_sql.INSTANCE, row, strict=True))
        after.append(Step(_claiming_reported(dialect), values, 1))
    last = outcomes.came_first_values(dialect, claims)
    if groups:
        owners = {c.group: c.group_owner for c in claims if c.group}
        last |= rows.pack(dialect, _OWNER, [*owners.items()], 'owners')
        last |= after[0].values
    after.append(Step(_refusing(dialect, bool(groups)), last, refuses=True))
    return Steps(before, hold, touched, more, after)


def _inserts(
    dialect: str,
    placed: Sequence[Claim],
    moving: Sequence[Claim],
    reported: Sequence[Claim],
    groups: Sequence[str],
) -> Iterator[Step]:
    """Yield what locks rows, and inserts those that others may insert."""
    if moving or reported:
        stored = [*map(_consumer, moving), *map(_consumer, reported)]
        yield Step(lifecycle.LOCK, {'keys': stored})
    if groups:
        yield Step(_LOCK_GROUPS, {'keys': groups})
    if placed:
        yield _placing(dialect, placed)
    if moving:
        values = rows.pack(dialect, _MOVE, [*map(_move_row, moving)])
        yield Step(_moving(dialect), values, len(moving))


def _recording(dialect: str, claims: Sequence[Claim]) -> Step:
    """Return what inserts the records of stages."""
    records = [
        (stage, claim.consumer, claim.host_id, document)
        for claim in claims
        for stage, document in claim.records
    ]
    values = rows.pack(dialect, stage_records.INTENT, records)
    return Step(_intending(dialect), values, len(records))


def _joins(
    dialect: str,
    claims: Sequence[Claim],
    groups: Sequence[str],
    policies: Collection[str],
) -> Iterator[Step]:
    """Yield what joins server groups, and checks the strict policies.

    Of claims that may have to do with a group: others are most.
    """
    places = [
        (
            claim.consumer,
            claim.host,
            int(claim.is_present or claim.move),
            int(claim.move or not claim.is_present),
            claim.group,
        )
        for claim in claims
        if claim.group or claim.is_present or claim.move
    ]
    if not places:
        return
    values = rows.pack(dialect, _PLACE, places)
    if groups:
        yield Step(_joining(dialect), values)
    strict = tuple(name for name in _STRICT if name in policies)
    if strict:
        query = _breaking(dialect, strict)
        yield Step(query, values, refuses=True, why=_BREAKS_POLICY)


@functools.cache
def _leaving(dialect: str) -> sa.TextClause:
    """Return the query of the hosts that reported instances are on."""
    instance = rows.joined(dialect, 'instances', 'i', {'uuid': 'a.uuid'})
    host = rows.joined(dialect, 'hosts', 'h', {'host': 'i.host'})
    source = rows.source(dialect, _UUID, 'load')
    return sa.text(f'SELECT h.id AS changed FROM {source} {instance} {host}')  # noqa: S608


@functools.cache
def _existing(dialect: str) -> sa.TextClause:
    """Return the query of the server groups that exist."""
    group = rows.joined(dialect, 'server_groups', 'g', {'uuid': 'a.uuid'})
    source = rows.source(dialect, _UUID, 'groups')
    return sa.text(f'SELECT g.uuid AS changed FROM {source} {group}')  # noqa: S608


def _taking(
    dialect: str,
    claims: Sequence[Claim],
    fallback: Mapping[str, float],
    stays: bool,
) -> tuple[Step, Step]:
    """Return what takes capacity and inserts allocations.

    :param stays: whether a move may take more of what its instance holds
    """
    if len(claims) == 1 and not stays and all(claims[0].amounts.values()):
        return _taking_one(dialect, claims[0], fallback)
    sizes: dict[Any, int] = {}
    places = []
    keys = set[tuple[int, str]]()
    for claim in claims:
        adds = int(bool(claim.records))
        for provider, part in claim.parts():
            key = (*part.items(),), (*claim.ratios.items(),), adds
            size = sizes.setdefault(key, len(sizes))
            places.append((claim.consumer, provider, size))
            keys.update((provider, name) for name, n in part.items() if n)
    amounts = [
        (size, name, n, dict(ratios).get(name), fallback.get(name, 0.0), adds)
        for (classes, ratios, adds), size in sizes.items()
        for name, n in classes
    ]
    values = {
        **rows.pack(dialect, _PLACED, places, 'places'),
        **rows.pack(dialect, _SIZE, amounts, 'sizes'),
    }
    taking = dict(values, expected=len(keys))
    return (
        Step(_taking_use(dialect, stays), taking, len(keys)),
        Step(_holding(dialect, stays), values),
    )


def _taking_one(
    dialect: str, claim: Claim, fallback: Mapping[str, float]
) -> tuple[Step, Step]:
    """Return the same for one claim, in statements that take less time."""
    taken = [
        (
            provider,
            name,
            amount,
            claim.ratios.get(name),
            fallback.get(name, 0.0),
            claim.consumer,
        )
        for provider, part in sorted(claim.parts())
        for name, amount in sorted(part.items())
    ]
    values = rows.pack(dialect, _TAKEN, taken)
    take = claim_sql.change_use(dialect, where_it_fits=True)
    columns = (*claim_sql.ALLOCATION.items(),)
    hold = rows.inserting(dialect, 'allocations', columns, None)
    return (
        Step(take, {**values, 'expected': len(taken)}, len(taken)),
        Step(hold, values),
    )


def _move_row(claim: Claim) -> tuple[Any, ...]:
    """Return a row in the order of :data:`_MOVE`."""
    return (
        claim.consumer,
        claim.host_id,
        claim.host,
        claim.node,
        claim.request_id,
        claim.placement,
        claim.key,
        int(claim.may_stay),
    )


def _exact(dialect: str, text: str) -> str:
    """Return SQL for a text that is compared byte by byte.

    MariaDB compares no column with a text that was sent if either counts
    blanks at its end and the other does not.
    """
    return f'CAST({text} AS BINARY)' if dialect == 'mysql' else text


def _placing(dialect: str, claims: Sequence[Claim]) -> Step:
    """Return what inserts instances; arrays for one would take longer."""
    placed = [*map(claim_sql.instance_row, claims)]
    if len(placed) == 1:
        return Step(
            _placing_one(dialect),
            dict(zip(claim_sql.INSTANCE, placed[0], strict=True)),
        )
    insert = rows.inserting(
        dialect, 'instances', (*claim_sql.INSTANCE.items(),), 'created_at'
    )
    return Step(insert, rows.pack(dialect, claim_sql.INSTANCE, placed))


@functools.cache
def _placing_one(dialect: str) -> sa.TextClause:
    values = ', '.join(f':{name}' for name in claim_sql.INSTANCE)
    return sa.text(
        f'INSERT INTO instances ({", ".join(claim_sql.INSTANCE)}, created_at) '  # noqa: S608
        f'VALUES ({values}, {clock.sql(dialect)})'
    )


@functools.cache
def _intending(dialect: str) -> sa.TextClause:
    return sa.text(stage_records.intending(dialect))


@functools.cache
def _moving(dialect: str) -> sa.TextClause:
    """Return the statement that inserts moves of instances.

    It inserts none of an instance that is gone, or is on its new host already
    and may not stay there.
    """
    exact = functools.partial(_exact, dialect)
    names = ', '.join([*_MOVE][:-1])
    instance = rows.joined(
        dialect, 'instances', 'i', {'uuid': 'a.instance_uuid'}
    )
    values = ', '.join(f'a.{name}' for name in [*_MOVE][:-1])
    return sa.text(
        f'INSERT INTO moves ({names}, created_at) '  # noqa: S608
        f'SELECT {values}, {clock.sql(dialect)} '
        f'FROM {rows.source(dialect, _MOVE)} {instance} '
        f'WHERE a.may_stay = 1 OR {exact("i.host")} <> {exact("a.host")}'
    )


@functools.cache
def _taken(dialect: str, stays: bool) -> str:
    """Return SQL for a table ``t`` of what each claim takes, by class.

    :param stays: whether consumers may hold some of the same host or
        aggregate, which is ``held`` then: the larger of both claims counts.
        Another service that has the allocations, too, adds them up
    """
    held, more, join = '0', 'k.amount', ''
    if stays:
        held = 'COALESCE(h.amount, 0)'
        more = """CASE
            WHEN k.adds = 1 OR h.amount IS NULL THEN k.amount
            WHEN k.amount > h.amount THEN k.amount - h.amount ELSE 0 END"""
        same = rows.equal(
            dialect,
            {
                'h.consumer_uuid': 'p.consumer_uuid',
                'h.host_id': 'p.host_id',
                'h.resource_class': 'k.resource_class',
            },
        )
        join = f'LEFT JOIN allocations AS h ON {same}'
    return f"""(
        SELECT p.consumer_uuid, p.host_id, k.resource_class, k.amount,
            k.ratio, k.fallback, {held} AS held, {more} AS more
        FROM (SELECT * FROM {rows.source(dialect, _PLACED, 'places')}) AS p
        JOIN (SELECT * FROM {rows.source(dialect, _SIZE, 'sizes')}) AS k
            ON k.size = p.size {join}
    ) AS t"""  # noqa: S608


@functools.cache
def _taking_use(dialect: str, stays: bool) -> sa.TextClause:
    whole = {'postgresql': 'bigint', 'mysql': 'SIGNED', 'sqlite': 'INTEGER'}
    order = 'COLLATE "C"' if dialect == 'postgresql' else ''
    source = f"""(
        SELECT host_id, resource_class,
            CAST(sum(more) AS {whole[dialect]}) AS amount,
            min(ratio) AS ratio, min(fallback) AS fallback
        FROM {_taken(dialect, stays)} WHERE amount > 0
        GROUP BY host_id, resource_class
        ORDER BY host_id, resource_class {order} LIMIT {claim_sql.MOST}
    ) AS a"""  # noqa: S608
    return claim_sql.changing_use(dialect, source, where_it_fits=True)


@functools.cache
def _holding(dialect: str, stays: bool) -> sa.TextClause:
    key = ', '.join(claim_sql.HELD)
    conflict = ''
    if stays and dialect == 'mysql':
        conflict = 'ON DUPLICATE KEY UPDATE amount = VALUES(amount)'
    elif stays:
        conflict = (
            f'ON CONFLICT ({key}) DO UPDATE SET amount = excluded.amount'
        )
    return sa.text(
        f'INSERT INTO allocations ({key}, amount) '  # noqa: S608
        f'SELECT {key}, held + more FROM {_taken(dialect, stays)} '
        f'WHERE 1 = 1 {conflict}'
    )


@functools.cache
def _joining(dialect: str) -> sa.TextClause:
    """Return the statement that adds instances to groups that exist.

    None of another group. It comes after the instances' rows: those wait for
    a release that is under way, which takes memberships with it.
    """
    ignore = 'IGNORE' if dialect == 'mysql' else ''
    conflict = '' if ignore else 'ON CONFLICT DO NOTHING'
    group = rows.joined(dialect, 'server_groups', 'g', _GROUP_OF_CLAIM)
    return sa.text(f"""
        INSERT {ignore} INTO server_group_members (group_uuid, instance_uuid)
        SELECT a.group_uuid, a.uuid
        FROM {rows.source(dialect, _PLACE)} {group}
        WHERE a.stored = 0 OR NOT EXISTS (
            SELECT 1 FROM server_group_members AS m
            WHERE {rows.equal(dialect, {'m.instance_uuid': 'a.uuid'})}
        ) {conflict}
    """)  # noqa: S608


@functools.cache
def _refusing(dialect: str, grouped: bool) -> sa.TextClause:
    """Return the query that has a row where claims must not be made.

    An instance was released since its request was compared with releases, or
    a request has an outcome. A group appeared or changed its project since
    the hosts were read, which was checked, or its instance is in another.
    """
    queries = [outcomes.coming_first(dialect)]
    membership = {'m.group_uuid': 'a.group_uuid', 'm.instance_uuid': 'a.uuid'}
    if grouped:
        group = rows.joined(dialect, 'server_groups', 'g', {'uuid': 'a.uuid'})
        queries.append(f"""
            SELECT 1 FROM {rows.source(dialect, _OWNER, 'owners')} {group}
            WHERE a.owner IS NULL OR {_exact(dialect, 'a.owner')}
                <> {_exact(dialect, "COALESCE(g.project_id, '')")}
        """)  # noqa: S608
        group = rows.joined(dialect, 'server_groups', 'g', _GROUP_OF_CLAIM)
        queries.append(f"""
            SELECT 1 FROM {rows.source(dialect, _PLACE)} {group}
            WHERE NOT EXISTS (
                SELECT 1 FROM server_group_members AS m
                WHERE {rows.equal(dialect, membership)}
            )
        """)  # noqa: S608
    return sa.text(' UNION ALL '.join(queries))


@functools.cache
def _claiming_reported(dialect: str) -> sa.TextClause:
    """Return the statement that claims where a host reported an instance.

    Its row is updated, not replaced: a transaction that waits for it would
    find no row afterwards.
    """
    names = [name for name in claim_sql.INSTANCE if name != 'uuid']
    return sa.text(
        f'UPDATE instances SET {", ".join(f"{n} = :{n}" for n in names)}, '  # noqa: S608
        f'created_at = {clock.sql(dialect)} '
        "WHERE uuid = :uuid AND state = 'reported'"
    )


@functools.cache
def _breaking(dialect: str, policies: tuple[str, ...]) -> sa.TextClause:
    """Return the query of the groups of which claims break the policy.

    By the places that members have with these claims. What is wrong elsewhere
    does not matter. Under anti-affinity no host that a member comes to has
    more members than its group allows. Under affinity the claims take one
    host that has members which do not move, unless all members move with
    them.

    ``taken`` are the claims of members, with the host that each was on, and
    ``seats`` the places of all members as they are written: one that moves
    has two.
    """
    exact = functools.partial(_exact, dialect)
    named = ', '.join(f"'{policy}'" for policy in policies)
    by_uuid = {'uuid': 'b.uuid'}
    group = rows.joined(
        dialect, 'server_groups', 'g', {'uuid': 'm.group_uuid'}
    )
    members = functools.partial(
        rows.joined, dialect, 'server_group_members', 'm'
    )
    return sa.text(f"""
        WITH taken AS (
            SELECT m.group_uuid, a.uuid, {exact('a.host')} AS host,
                a.written, g.policy,
                COALESCE(NULLIF(g.max_server_per_host, 0), 1) AS most, (
                    SELECT {exact('i.host')} FROM instances AS i
                    WHERE {rows.equal(dialect, {'i.uuid': 'a.uuid'})}
                        AND a.stored = 1
                ) AS was_on
            FROM {rows.source(dialect, _PLACE)}
            {members({'instance_uuid': 'a.uuid'})} {group}
            WHERE g.policy IN ({named})
        ), listed AS (
            SELECT m.group_uuid, m.instance_uuid AS uuid
            FROM (SELECT DISTINCT group_uuid FROM taken) AS t
            {members({'group_uuid': 't.group_uuid'})}
        ), seats AS (
            SELECT b.group_uuid, b.uuid, {exact('i.host')} AS host
            FROM listed AS b
            {rows.joined(dialect, 'instances', 'i', by_uuid)}
            UNION SELECT b.group_uuid, b.uuid, {exact('v.host')}
            FROM listed AS b
            {rows.joined(dialect, 'moves', 'v', {'instance_uuid': 'b.uuid'})}
        ), others AS (
            SELECT s.group_uuid, s.uuid, min(s.host) AS host,
                count(*) AS places
            FROM seats AS s LEFT JOIN taken AS t
                ON t.group_uuid = s.group_uuid AND t.uuid = s.uuid
            WHERE t.uuid IS NULL GROUP BY s.group_uuid, s.uuid
        ), affine AS (
            SELECT t.group_uuid,
                CASE WHEN t.was_on <> t.host THEN 1 ELSE 0 END AS moves,
                CASE WHEN NOT EXISTS (
                    SELECT 1 FROM others AS o WHERE o.places = 1
                        AND o.group_uuid = t.group_uuid AND o.host = t.host
                ) AND NOT EXISTS (
                    SELECT 1 FROM taken AS o
                    WHERE o.group_uuid = t.group_uuid AND o.was_on = t.host
                ) THEN t.host END AS new_host
            FROM taken AS t WHERE t.policy = 'affinity'
        )
        SELECT t.group_uuid FROM taken AS t LEFT JOIN (
            SELECT group_uuid, host, count(*) AS members FROM seats
            GROUP BY group_uuid, host
        ) AS s ON s.group_uuid = t.group_uuid AND s.host = t.host
        WHERE t.policy = 'anti-affinity'
            AND (t.was_on IS NULL OR t.was_on <> t.host)
            AND COALESCE(s.members, 0) + (
                SELECT count(*) FROM taken AS o WHERE o.written = 0
                    AND o.group_uuid = t.group_uuid AND o.host = t.host
                    AND o.was_on <> o.host
            ) > t.most
        UNION ALL
        SELECT group_uuid FROM affine GROUP BY group_uuid
        HAVING sum(moves) NOT IN (0, count(*))
            OR count(DISTINCT new_host) > 1
            OR (count(DISTINCT new_host) = 1
                AND group_uuid IN (SELECT group_uuid FROM others))
    """)  # noqa: S608
