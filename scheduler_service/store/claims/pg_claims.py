"""Claims or releases of a batch in one round trip, for PostgreSQL alone.

Stateless: any thread may build the statements.

Claims are the list of ``claim_steps``, as one transaction: statements that
fail where their guards do not hold, and one that takes the next revision and
appends the change record.

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
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.columns.changes import Release
from scheduler_service.engine.ports import ClaimLost
from scheduler_service.store import clock, rows
from scheduler_service.store.claims import (
    claim_sql,
    lifecycle,
    outcomes,
    pg_statements,
)
from scheduler_service.store.claims.claim_steps import Step, Steps
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
# As a query of its own it is evaluated once, not for each row.
_NOW = f'(SELECT {clock.sql("postgresql")})'
# Guards: a statement divides by zero where it changed another number of rows,
# or found one. {} is the statement.
_CHANGES = """
    WITH changed AS ({} RETURNING 1)
    SELECT 1 / (CASE WHEN count(*) = CAST({} AS bigint) THEN 1 ELSE 0 END)
    FROM changed
"""
# It fails with a message that ends with what it found.
_FINDS = """
    SELECT CAST((SELECT 'found ' || f FROM ({}) AS r(f) LIMIT 1) AS integer)
"""
_FOUND, _IS_FOUND = '22P02', re.compile(r'found (.*)\W$')
# The last statement returns the revision.
_REFUSES = f"""
    SELECT value / (CASE WHEN EXISTS ({{}}) THEN 0 ELSE 1 END)
    FROM counters WHERE name = '{REVISION}'
"""  # noqa: S608


@functools.cache
def _counting(
    hold: sa.TextClause | None, more: tuple[tuple[str, sa.TextClause], ...]
) -> sa.TextClause:
    """Return the statement that takes the counter and appends the change.

    :param hold: is executed with it, which takes less time than by itself
    :param more: the field of each query in the change record, and the query
    """
    touched = ':touched'
    for field, query in more:
        touched = f"""
            jsonb_set(CAST({touched} AS jsonb), '{{{field}}}', COALESCE(
                CAST(:touched AS jsonb) -> '{field}', '[]') || (
                SELECT COALESCE(jsonb_agg(changed ORDER BY changed), '[]')
                FROM ({query.text}) AS f))
        """  # noqa: S608
    held = '' if hold is None else f', held AS ({hold.text})'
    return sa.text(f"""
        WITH counted AS (
            UPDATE counters SET value = value + 1 WHERE name = '{REVISION}'
            RETURNING value
        ) {held}
        INSERT INTO changes (revision, touched, lineage, created_at)
        SELECT value, CAST({touched} AS text), :lineage, {_NOW} FROM counted
    """)  # noqa: S608


def statements(steps: Steps, lineage: str) -> list[BoundStatement]:
    """Return what makes claims in one round trip.

    :param lineage: the token of their change
    """
    more = tuple(
        (field, query.statement) for field, query in steps.more.items()
    )
    values: dict[str, Any] = {
        'touched': steps.touched.to_json(),
        'lineage': lineage,
    }
    hold = steps.hold and steps.hold.statement
    if steps.hold is not None:
        values |= steps.hold.values
    for query in steps.more.values():
        values |= query.values
    return [
        *map(_bound, steps.before),
        BoundStatement.of(_counting(hold, more), values),
        *map(_bound, steps.after),
    ]


def _bound(step: Step) -> BoundStatement:
    form = '{}'
    if step.refuses:
        form = _FINDS if step.why else _REFUSES
    elif step.changes is not None:
        return BoundStatement.of(
            step.statement, {**step.values, 'changes': step.changes}, _CHANGES
        )
    return BoundStatement.of(step.statement, step.values, form)


def send(
    store: Store,
    conn: Connection,
    statements: Sequence[BoundStatement],
    steps: Steps,
) -> Callable[[], int]:
    """Send the claims of a batch; return what waits for their revision."""
    wait = pg_statements.send(store, conn, statements)

    def receive() -> int:
        try:
            return int(wait())
        except StatementError as fault:
            found = _IS_FOUND.search(fault.message)
            if fault.sqlstate == _FOUND and found:
                why = next(step.why for step in steps.after if step.why)
                raise ClaimLost(why.format(found[1])) from None
            if fault.sqlstate not in _NOTHING_DONE:
                raise
            raise ClaimLost from None

    return receive


# Settings of the transaction, which its statements hand on.
_SETTING, _RESULT = 'scheduler_service.locked', 'scheduler_service.released'
_LOCK_INSTANCES = f"""
    SELECT set_config('{_SETTING}', CAST(
        COALESCE(array_agg(uuid), CAST(ARRAY[] AS text[])) AS text), true)
    FROM ({{}}) AS l
"""  # noqa: S608
_LOCKED = f"CAST(current_setting('{_SETTING}') AS text[])"
_EXPECTED = {'uuid': 'text', 'project_id': 'text'}
_ITEM = {'idempotency_key': 'text', 'uuid': 'text'}
# The demand leads the join, so rows are locked in its order.
_SAME_ROW = rows.equal('postgresql', claim_sql.SAME_ROW)
_RELEASE = sa.text(f"""
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
    ), of_hosts AS (
        SELECT consumer_uuid AS uuid, host_id,
            json_object_agg(resource_class, amount) AS amounts
        FROM held GROUP BY consumer_uuid, host_id
    ), of_consumers AS (
        SELECT uuid, json_object_agg(host_id, amounts) AS amounts
        FROM of_hosts GROUP BY uuid
    ), demand AS MATERIALIZED (
        SELECT host_id, resource_class,
            CAST(-sum(amount) AS bigint) AS amount
        FROM held GROUP BY host_id, resource_class
        ORDER BY host_id, resource_class COLLATE "C"
    ), given AS (
        UPDATE inventories AS i SET {claim_sql.TAKE}
        FROM (SELECT * FROM demand LIMIT {claim_sql.MOST}) AS a
        WHERE {_SAME_ROW}
        RETURNING a.host_id, a.resource_class, {claim_sql.UNUSED} AS is_unused
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
        'claims', (SELECT COALESCE(json_agg(json_build_array(
            uuid, host, node, COALESCE(amounts, '{{}}'))), '[]')
            FROM placed FULL JOIN of_consumers USING (uuid)),
        'moved', (SELECT COALESCE(json_agg(uuid), '[]') FROM moved),
        'unused', (SELECT COALESCE(json_agg(given), '[]')
            FROM given WHERE is_unused),
        'members', (SELECT COALESCE(json_agg(json_build_array(
            group_uuid, instance_uuid)), '[]') FROM members)
    ) AS text), true)
""")  # noqa: S608
# What was released. It divides by zero where a claim is left. A statement that
# changes a row cannot delete it as well.
_LOOK = f"""
    WITH dropped AS (
        DELETE FROM inventories AS i USING json_to_recordset(
            CAST(current_setting('{_RESULT}') AS json) -> 'unused'
        ) AS a(host_id bigint, resource_class text) WHERE {_SAME_ROW}
    )
    SELECT CASE WHEN 1 / (CASE WHEN EXISTS ({{}}) THEN 0 ELSE 1 END) = 1
        THEN current_setting('{_RESULT}') END
"""  # noqa: S608


class Released(Release):
    """The allocations and places that releases gave back.

    :ivar revision: of their change
    """

    revision: int

    @property
    def consumers(self) -> list[str]:
        """The instances that held something."""
        return [row[0] for row in self.claims]


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
            'keys': sorted(requests),
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
                BoundStatement.of(lifecycle.LOCK, values, _LOCK_INSTANCES),
                BoundStatement.of(_RELEASE, values),
                BoundStatement.of(lifecycle.CLAIMS_OF, values, _LOOK),
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
