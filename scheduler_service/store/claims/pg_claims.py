"""Claims or releases of a batch in one round trip, for PostgreSQL alone.

Stateless: any thread may build the statements.

Claims do what ``ClaimBatch.make`` does and what ends a writing transaction:
take capacity, check and join server groups, insert instances and allocations,
take the next revision, append the change record. That is one statement, after
statements that record what stages intend and lock server groups, in one
transaction. Under READ COMMITTED it sees everything that was committed before
it started, so also the members that another daemon added while the statement
before it waited for the lock. The last statement likewise sees the releases
and the outcomes that were committed until the one before it had the counter.

Releases do what ``lifecycle.cancel`` does, end the transaction likewise, and
record the outcomes of the requests. Three statements travel together, each on
a snapshot of its own: the first locks the instances and keeps their uuids as a
setting of the transaction, the second gives back their allocations and takes
the counter, the third looks whether anything is left. The owners of the
instances are assumed, since code of this process checks them. Where an
instance has another owner, or something is left (it was claimed in between,
or its instance is not stored), a statement divides by zero: nothing is done,
and ``lifecycle`` does it in several round trips.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy.engine import Connection

from scheduler_service.engine.ports import ClaimLost
from scheduler_service.store import clock, postgresql, rows
from scheduler_service.store.claims import (
    claim_sql,
    outcomes,
    pg_statements,
    stage_records,
)
from scheduler_service.store.claims.claim_sql import Claim
from scheduler_service.store.claims.pg_statements import (
    BoundStatement,
    StatementError,
)
from scheduler_service.store.connection import (
    REVISION,
    ChangeRecord,
    Store,
    new_lineage,
)

# States of a statement that did nothing: a division by zero, where a condition
# of the whole statement does not hold; and a duplicate key, where a consumer
# holds a claim or a request has an outcome.
_NOTHING_DONE = ('22012', '23505')
# The state of claims that break a policy: the root of a negative number.
_POLICY_VIOLATED = '2201F'
# As a query of its own it is evaluated once, not for each row.
_NOW = f'(SELECT {clock.sql("postgresql")})'
# The number of instances that a statement inserted.
_PLACED = '(SELECT count(*) FROM placed)'
# The place of one instance. What it takes there is in the rows of its size.
_PLACE = {**claim_sql.INSTANCE, 'host_id': 'int', 'size': 'int'}
_GROUPED_PLACE = {**_PLACE, 'group_uuid': 'text'}
# What each instance of a size takes of one resource class.
_SIZE = {
    'size': 'int',
    'resource_class': 'text',
    'amount': 'int',
    'ratio': 'float',
    'fallback': 'float',
}
# Locked in the order of the uuids, as in every transaction.
_LOCK_GROUPS = """
    SELECT 1 FROM server_groups WHERE uuid = ANY(CAST(:groups AS text[]))
    ORDER BY uuid FOR UPDATE
"""
_INTEND = f"""
    WITH made AS ({stage_records.intending('postgresql')} RETURNING 1)
    SELECT 1 / (CASE WHEN count(*) = CAST(:intended AS bigint)
        THEN 1 ELSE 0 END) FROM made
"""  # noqa: S608
# The revision of the claims. It divides by zero where the claims must not be
# made.
_CHECK = f"""
    SELECT value / (CASE WHEN EXISTS ({outcomes.coming_first('postgresql')})
        THEN 0 ELSE 1 END) FROM counters WHERE name = '{REVISION}'
"""  # noqa: S608

# Common table expressions over ``places``, with the columns group_uuid, uuid
# and host: ``joining`` are the instances that are to be members, ``strict``
# the groups of which the policy must hold, and ``seats`` the hosts of their
# members; one that moves has two. Lookups are written so that PostgreSQL uses
# the keys instead of reading whole tables.
_SEATS = """
    joining AS MATERIALIZED (
        SELECT group_uuid, uuid, host FROM places
        WHERE group_uuid IS NOT NULL
    ), strict AS MATERIALIZED (
        SELECT uuid, policy = 'anti-affinity' AS apart,
            COALESCE(NULLIF(max_server_per_host, 0), 1) AS most
        FROM server_groups
        WHERE uuid = ANY(CAST(:groups AS text[]))
            AND policy = ANY(CAST(:policies AS text[]))
    ), seats AS MATERIALIZED (
        SELECT DISTINCT m.group_uuid, m.instance_uuid AS uuid, present.host
        FROM strict AS g
        CROSS JOIN LATERAL (
            SELECT * FROM server_group_members
            WHERE group_uuid = ANY(ARRAY[g.uuid]) OFFSET 0
        ) AS m
        CROSS JOIN LATERAL (
            SELECT i.host FROM instances AS i
            WHERE i.uuid = ANY(ARRAY[m.instance_uuid])
            UNION ALL
            SELECT v.host FROM moves AS v
            WHERE v.instance_uuid = ANY(ARRAY[m.instance_uuid])
        ) AS present
    ),
"""

# A group that appeared or changed its project since the hosts were read is not
# joined: its project was not checked.
_SAME_OWNERS = """
    NOT EXISTS (
        SELECT 1 FROM server_groups AS g JOIN unnest(
            CAST(:groups AS text[]), CAST(:owners AS text[])
        ) AS o(uuid, owner) ON g.uuid = o.uuid
        WHERE COALESCE(g.project_id, '') IS DISTINCT FROM o.owner
    )
"""

# Whether every strict policy holds on the hosts that are claimed. As in
# ``ClaimBatch.make``, what is wrong elsewhere does not matter: under affinity
# a host has to be one of those that have members which do not move, if any has
# members.
_KEEPS_POLICIES = """
    NOT EXISTS (
        SELECT 1 FROM (
            SELECT * FROM joining UNION SELECT * FROM seats
        ) AS s JOIN strict AS g ON g.uuid = s.group_uuid
        WHERE g.apart AND (s.group_uuid, s.host) IN (
            SELECT group_uuid, host FROM joining
        )
        GROUP BY s.group_uuid, s.host, g.most
        HAVING count(*) > g.most
    ) AND NOT EXISTS (
        SELECT 1 FROM joining AS j JOIN strict AS g ON g.uuid = j.group_uuid
        WHERE NOT g.apart AND (j.group_uuid, j.host) NOT IN (
            SELECT group_uuid, min(host) FROM seats
            GROUP BY group_uuid, uuid HAVING count(*) = 1
        )
        GROUP BY j.group_uuid
        HAVING count(DISTINCT j.host) > 1
            OR j.group_uuid IN (SELECT group_uuid FROM seats)
    )
"""

# Adds instances to groups that exist and that they are not members of, each
# after its row was inserted: that waits for a release that is under way, which
# takes memberships with it.
_JOINED = """
    joined AS (
        INSERT INTO server_group_members (group_uuid, instance_uuid)
        SELECT j.group_uuid, j.uuid
        FROM joining AS j JOIN placed AS p ON p.uuid = j.uuid
        WHERE EXISTS (
            SELECT 1 FROM server_groups AS g
            WHERE g.uuid = ANY(ARRAY[j.group_uuid])
        )
        ON CONFLICT DO NOTHING
        RETURNING group_uuid
    ),
"""

# The change record, with the groups that got members.
_TOUCHED = """
    CASE WHEN EXISTS (SELECT 1 FROM joined) THEN CAST(
        CAST(CAST(:touched AS text) AS jsonb) || jsonb_build_object(
            'groups', (SELECT jsonb_agg(DISTINCT group_uuid) FROM joined)
        ) AS text) ELSE CAST(:touched AS text) END
"""


def statements(
    claims: Sequence[Claim],
    fallback: Mapping[str, float],
    policies: Collection[str],
    lineage: str,
) -> list[BoundStatement]:
    """Return the statements that make all claims, or none.

    :param claims: for instances that the store does not have yet
    :param fallback: resource class -> allocation ratio of hosts without one
    :param policies: server group policies that a claim must not break
    :param lineage: the token of the change
    """
    touched = ChangeRecord(
        load=sorted({claim.host_id for claim in claims}),
        instances=[claim.consumer for claim in claims],
    )
    groups = sorted({claim.group for claim in claims if claim.group})
    values: dict[str, Any] = {
        'touched': touched.to_json(),
        'lineage': lineage,
        **outcomes.came_first_values('postgresql', claims),
    }
    claiming = _claim(grouped=bool(groups))
    if groups:
        values.update(_places(claims, fallback, _GROUPED_PLACE))
        owners = claim_sql.group_owners(claims)
        values['owners'] = postgresql.TextColumn(map(owners.get, groups))
        values['groups'] = postgresql.TextColumn(groups)
        values['policies'] = postgresql.TextColumn(policies)
    elif len(claims) == 1:
        claiming = _claim_single()
        demand = claim_sql.demand_rows(claims, fallback, {})
        instance = claim_sql.instance_row(claims[0])
        values.update(zip(claim_sql.INSTANCE, instance, strict=True))
        values.update(
            rows.pack('postgresql', claim_sql.DEMAND, demand, 'demand')
        )
        values['expected'] = len(demand)
    else:
        values.update(_places(claims, fallback, _PLACE))
    intents = [
        (stage, claim.consumer, claim.host_id, document)
        for claim in claims
        for stage, document in claim.records
    ]
    texts = []
    if intents:
        texts.append(_INTEND)
        values['intended'] = len(intents)
        values.update(rows.pack('postgresql', stage_records.INTENT, intents))
    if groups:
        texts.append(_LOCK_GROUPS)
    texts += [claiming, _CHECK]
    return [BoundStatement.of(text, values) for text in texts]


def send(
    store: Store,
    conn: Connection,
    statements: Sequence[BoundStatement],
    groups: Sequence[str] = (),
) -> Callable[[], int]:
    """Send the claims of a batch; return what waits for their revision.

    :param groups: the server groups of their instances
    """
    wait = pg_statements.send(store, conn, statements)

    def receive() -> int:
        try:
            return int(wait())
        except StatementError as fault:
            if fault.sqlstate == _POLICY_VIOLATED:
                raise ClaimLost(claim_sql.breaks_policy(groups)) from None
            if fault.sqlstate not in _NOTHING_DONE:
                raise
            raise ClaimLost from None

    return receive


def _places(
    claims: Sequence[Claim],
    fallback: Mapping[str, float],
    columns: Mapping[str, str],
) -> dict[str, Any]:
    """Return the parameters of :func:`_claim`.

    Instances that take the same amounts are of one size: a batch has few
    flavors.

    :param columns: of ``places``
    """
    sizes: dict[Any, int] = {}
    places = []
    for claim in claims:
        key = (*claim.amounts.items(),), (*claim.ratios.items(),)
        size = sizes.setdefault(key, len(sizes))
        row = *claim_sql.instance_row(claim), claim.host_id, size, claim.group
        places.append(row[: len(columns)])
    size_rows = [
        (size, name, amount, dict(ratios).get(name), fallback.get(name, 0.0))
        for (amounts, ratios), size in sizes.items()
        for name, amount in amounts
    ]
    return {
        **rows.pack('postgresql', columns, places, 'places'),
        **rows.pack('postgresql', _SIZE, size_rows, 'sizes'),
        'expected': len(places) * len(size_rows),
    }


@functools.cache
def _claim_single() -> str:
    """Return the statement for one instance, which takes less time."""
    demand = rows.source('postgresql', claim_sql.DEMAND, 'demand')
    texts = ', '.join(f'CAST(:{name} AS text)' for name in claim_sql.INSTANCE)
    return _claim_of(
        demand=demand,
        count=':expected',
        instances=f'SELECT {texts}, {_NOW}',
        allocations=f"""
            SELECT CAST(:uuid AS text), host_id, resource_class, amount
            FROM {demand}
        """,  # noqa: S608
    )


@functools.cache
def _claim(grouped: bool) -> str:
    """Return the statement for many instances.

    ``demand`` adds up what they take of each host, in the order in which
    every transaction takes inventory rows.
    """
    columns, seats, more = _PLACE, '', {}
    if grouped:
        columns, seats = _GROUPED_PLACE, _SEATS
        more = {
            'allowed': _SAME_OWNERS,
            'kept': _KEEPS_POLICIES,
            'joined': _JOINED,
            'touched': _TOUCHED,
        }
    return _claim_of(
        unpacked=f"""
            places AS MATERIALIZED (
                SELECT * FROM {rows.source('postgresql', columns, 'places')}
            ), sizes AS MATERIALIZED (
                SELECT * FROM {rows.source('postgresql', _SIZE, 'sizes')}
            ), demand AS MATERIALIZED (
                SELECT host_id, resource_class,
                    CAST(sum(amount) AS bigint) AS amount,
                    min(ratio) AS ratio, min(fallback) AS fallback
                FROM places JOIN sizes USING (size)
                GROUP BY host_id, resource_class
                ORDER BY host_id, resource_class COLLATE "C"
            ), {seats}
        """,  # noqa: S608
        demand='demand',
        count='(SELECT count(*) FROM demand)',
        instances=f"""
            SELECT {', '.join(claim_sql.INSTANCE)}, {_NOW} FROM places
        """,  # noqa: S608
        allocations="""
            SELECT uuid, host_id, resource_class, amount
            FROM places JOIN sizes USING (size)
        """,
        **more,
    )


def _claim_of(
    demand: str,
    count: str,
    instances: str,
    allocations: str,
    unpacked: str = '',
    allowed: str = 'true',
    kept: str = 'true',
    joined: str = '',
    touched: str = ':touched',
) -> str:
    """Return a statement that makes all claims or fails.

    The inventories come after the instances, and the counter after both, as
    in every transaction. Where not every row could be taken the division by
    zero fails, and with it the whole statement.
    """
    return f"""
        WITH {unpacked} placed AS (
            INSERT INTO instances
                ({', '.join(claim_sql.INSTANCE)}, created_at) {instances}
            RETURNING uuid
        ), took AS (
            UPDATE inventories AS i SET {claim_sql.TAKE}
            FROM {claim_sql.pg_limited(demand, _PLACED)}
            WHERE {claim_sql.PG_SAME_ROW_IN_ORDER} AND {claim_sql.FITS}
            RETURNING 1
        ), enough AS MATERIALIZED (
            SELECT 1 / (CASE WHEN count(*) = {count} AND {allowed}
                THEN 1 ELSE 0 END)
                * CAST(sqrt(CASE WHEN {kept} THEN 1 ELSE -1 END) AS integer)
                AS yes
            FROM took
        ), {joined} held AS (
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


# Settings of the transaction, which its statements hand on.
_SETTING, _RESULT = 'scheduler_service.locked', 'scheduler_service.released'
_LOCK_INSTANCES = f"""
    SELECT set_config('{_SETTING}',
        CAST(COALESCE(array_agg(uuid), '{{}}') AS text), true)
    FROM (
        SELECT uuid FROM instances
        WHERE uuid = ANY(CAST(:uuids AS text[])) ORDER BY uuid FOR UPDATE
    ) AS l
"""  # noqa: S608
_LOCKED = f"CAST(current_setting('{_SETTING}') AS text[])"
_EXPECTED = {'uuid': 'text', 'project_id': 'text'}
_ITEM = {'idempotency_key': 'text', 'uuid': 'text'}
# So many rows of inventories at most are given back at once.
_MOST = 1_000_000
_RELEASE = f"""
    WITH expected AS MATERIALIZED (
        SELECT * FROM {rows.source('postgresql', _EXPECTED, 'expected')}
    ), possible AS MATERIALIZED (
        SELECT 1 / (CASE WHEN EXISTS (
            SELECT 1 FROM instances AS i JOIN expected AS e ON i.uuid = e.uuid
            WHERE i.uuid = ANY({_LOCKED}) AND e.project_id IS NOT NULL
                AND i.project_id IS DISTINCT FROM e.project_id
        ) THEN 0 ELSE 1 END) AS yes
    ), held AS (
        DELETE FROM allocations WHERE consumer_uuid = ANY({_LOCKED})
        RETURNING consumer_uuid, host_id, resource_class, amount
    ), moved AS (
        DELETE FROM moves WHERE instance_uuid = ANY({_LOCKED})
        RETURNING instance_uuid AS uuid, host, node, idempotency_key, placement
    ), placed AS (
        DELETE FROM instances
        WHERE uuid = ANY({_LOCKED}) AND state <> 'reported'
        RETURNING uuid, host, node, idempotency_key, placement
    ), members AS (
        DELETE FROM server_group_members WHERE instance_uuid IN (
            SELECT uuid FROM instances
            WHERE uuid = ANY({_LOCKED}) AND state <> 'reported'
        ) RETURNING group_uuid, instance_uuid
    ), gone AS (
        SELECT * FROM placed UNION ALL SELECT * FROM moved
    ), released AS (
        SELECT uuid FROM placed UNION SELECT consumer_uuid FROM held
    ), demand AS MATERIALIZED (
        SELECT host_id, resource_class,
            CAST(-sum(amount) AS bigint) AS amount
        FROM held GROUP BY host_id, resource_class
        ORDER BY host_id, resource_class COLLATE "C"
    ), given AS (
        UPDATE inventories AS i SET {claim_sql.TAKE}
        FROM (SELECT * FROM demand LIMIT {_MOST}) AS a
        WHERE {claim_sql.PG_SAME_ROW_IN_ORDER} RETURNING 1
    ), kept AS (
        INSERT INTO outcomes
            (idempotency_key, instance_uuid, kind, document, created_at)
        SELECT idempotency_key, uuid, '{outcomes.PLACEMENT}', placement, {_NOW}
        FROM gone
        WHERE idempotency_key IS NOT NULL AND placement IS NOT NULL
    ), results AS (
        INSERT INTO outcomes
            (idempotency_key, instance_uuid, kind, document, created_at)
        SELECT a.idempotency_key, '', '{outcomes.RESULT}', CAST(COALESCE(
            jsonb_agg(r.uuid ORDER BY r.uuid) FILTER (WHERE r.uuid IS NOT NULL)
            , '[]') AS text), {_NOW}
        FROM {rows.source('postgresql', _ITEM, 'items')}
        LEFT JOIN released AS r ON r.uuid = a.uuid
        GROUP BY a.idempotency_key
    ), counted AS (
        UPDATE counters SET value = value + (SELECT yes FROM possible)
            + 0 * (SELECT count(*) FROM given)
        WHERE name = '{REVISION}' RETURNING value
    ), changed AS (
        INSERT INTO changes (revision, touched, lineage, created_at)
        SELECT value, CAST(CAST(CAST(:touched AS text) AS jsonb)
            || jsonb_build_object(
                'load', (SELECT COALESCE(jsonb_agg(id), '[]') FROM (
                    SELECT host_id AS id FROM held
                    UNION SELECT h.id FROM hosts AS h
                    WHERE h.host IN (SELECT host FROM gone)) AS l),
                'groups', (SELECT COALESCE(
                    jsonb_agg(DISTINCT group_uuid), '[]') FROM members),
                'instances', (SELECT COALESCE(jsonb_agg(uuid), '[]')
                    FROM moved),
                'instances_gone', (SELECT COALESCE(jsonb_agg(uuid), '[]')
                    FROM placed)
            ) AS text), :lineage, {_NOW}
        FROM counted RETURNING revision
    ), recorded AS (
        INSERT INTO releases
            ({', '.join(outcomes.SENT_RELEASE)}, revision, released_at)
        SELECT a.*, revision, {_NOW}
        FROM changed CROSS JOIN
            {rows.source('postgresql', outcomes.SENT_RELEASE, 'released')}
        ON CONFLICT (instance_uuid, kind) DO UPDATE SET
            revision = excluded.revision, released_at = excluded.released_at,
            project_id = excluded.project_id, sent_at = excluded.sent_at
    )
    SELECT set_config('{_RESULT}', CAST(json_build_object(
        'revision', (SELECT revision FROM changed),
        'placed', (SELECT COALESCE(json_agg(
            json_build_array(uuid, host, node)), '[]') FROM placed),
        'moved', (SELECT COALESCE(json_agg(uuid), '[]') FROM moved),
        'held', (SELECT COALESCE(json_agg(json_build_array(
            consumer_uuid, host_id, resource_class, amount)), '[]')
            FROM held),
        'members', (SELECT COALESCE(json_agg(json_build_array(
            group_uuid, instance_uuid)), '[]') FROM members)
    ) AS text), true)
"""  # noqa: S608
# What was released. It divides by zero where a claim is left.
_LOOK = f"""
    SELECT CASE WHEN 1 / (CASE WHEN EXISTS (
        SELECT 1 FROM instances
        WHERE uuid = ANY(CAST(:uuids AS text[])) AND state <> 'reported'
    ) OR EXISTS (
        SELECT 1 FROM moves WHERE instance_uuid = ANY(CAST(:uuids AS text[]))
    ) OR EXISTS (
        SELECT 1 FROM allocations
        WHERE consumer_uuid = ANY(CAST(:uuids AS text[]))
    ) THEN 0 ELSE 1 END) = 1 THEN current_setting('{_RESULT}') END
"""  # noqa: S608


class Released(msgspec.Struct):
    """The allocations and places that releases gave back.

    :ivar revision: of their change
    :ivar placed: (instance, service host, node) of each claim
    :ivar moved: instances of which a move was released
    :ivar held: (consumer, host id, resource class, amount) of each allocation
    :ivar members: (group, instance) of each membership that ended
    """

    revision: int
    placed: list[tuple[str, str, str]]
    moved: list[str]
    held: list[tuple[str, int, str, int]]
    members: list[tuple[str, str]]

    @property
    def consumers(self) -> list[str]:
        """The instances that held something."""
        return [row[0] for row in self.placed] + [row[0] for row in self.held]


_decode = msgspec.json.Decoder(Released).decode


class PendingRelease:
    """Releases of a batch that are under way, in one round trip.

    The constructor sends them. *conn* must not be used until they are
    finished.

    :param conn: an open connection with no transaction
    :param requests: by instance
    :param expected: instance -> the project that it has to be of; None: any
    :param items: (idempotency key of a request, instance of it)
    :ivar instances: that callers released
    :ivar lineage: the token of their change
    :ivar sent_at: monotonic time at which they were sent
    :raises StoreUnavailable: the releases may have been made or not
    """

    def __init__(
        self,
        store: Store,
        conn: Connection,
        requests: Mapping[str, outcomes.ReleaseRequest],
        expected: Mapping[str, str | None],
        items: Sequence[tuple[str, str]],
    ) -> None:
        self.instances = list(requests)
        self.lineage = new_lineage()
        self.sent_at = time.monotonic()
        values: dict[str, Any] = {
            'uuids': postgresql.TextColumn(sorted(requests)),
            'touched': ChangeRecord(released=sorted(requests)).to_json(),
            'lineage': self.lineage,
            **rows.pack(
                'postgresql', _EXPECTED, sorted(expected.items()), 'expected'
            ),
            **rows.pack('postgresql', _ITEM, items, 'items'),
            **rows.pack(
                'postgresql',
                outcomes.SENT_RELEASE,
                outcomes.release_rows(requests, outcomes.ALL),
                'released',
            ),
        }
        self._receive = pg_statements.send(
            store,
            conn,
            [
                BoundStatement.of(text, values)
                for text in (_LOCK_INSTANCES, _RELEASE, _LOOK)
            ],
        )
        self._fault: Exception | None = None
        self._released: Released | None = None

    def finish(self) -> Released | None:
        """Wait for the database's answer; raises nothing.

        :return: what was released; None: nothing, or the result is uncertain
        """
        try:
            self._released = _decode(self._receive())
        except StatementError as fault:
            if fault.sqlstate not in _NOTHING_DONE:
                self._fault = fault
        except Exception as fault:
            self._fault = fault
        return self._released

    def wait(self) -> Released | None:
        """Return what was released, once it is finished.

        :return: None: not possible in one round trip; nothing is done
        :raises StoreTimeout: a statement waits for a lock; nothing is done
        :raises StoreUnavailable: the releases may have been made or not
        """
        if self._fault is not None:
            raise self._fault
        return self._released
