"""Releases of a batch in one round trip, for PostgreSQL alone.

Stateless: any thread may build the statements. They do what
``lifecycle.cancel`` does and what ends a writing transaction, and record the
outcomes of the requests. Three statements travel together and are one
transaction, each on a snapshot of its own: the first records the releases,
the second locks the instances and keeps their uuids as a setting of the
transaction, the third gives back what these hold.

It assumes whose the instances are, since their owners are checked by code of
this process. Where one is another's, or a consumer that was not locked holds
allocations (it was claimed in between, or its instance is not known), the
third statement divides by zero: nothing is done, and ``lifecycle`` does it
in several round trips.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy.engine import Connection

from scheduler_service.store import clock, postgresql, rows
from scheduler_service.store.claims import claim_sql, outcomes
from scheduler_service.store.claims.pg_statements import (
    BoundStatement,
    PendingStatements,
    StatementError,
)
from scheduler_service.store.connection import (
    REVISION,
    ChangeRecord,
    Store,
    new_lineage,
)

# States of a statement that does nothing: a division by zero, and an outcome
# that is recorded already.
_REFUSED = ('22012', '23505')
_SETTING = 'scheduler_service.locked'
_LOCK = f"""
    SELECT set_config('{_SETTING}',
        CAST(COALESCE(array_agg(uuid), '{{}}') AS text), true)
    FROM (
        SELECT uuid FROM instances
        WHERE uuid = ANY(CAST(:uuids AS text[])) ORDER BY uuid FOR UPDATE
    ) AS l
"""  # noqa: S608
_LOCKED = f"CAST(current_setting('{_SETTING}') AS text[])"
_NOW = f'(SELECT {clock.sql("postgresql")})'
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
        ) OR EXISTS (
            SELECT 1 FROM allocations
            WHERE consumer_uuid = ANY(CAST(:uuids AS text[]))
                AND consumer_uuid <> ALL({_LOCKED})
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
    ), asked AS MATERIALIZED (
        SELECT host_id, resource_class,
            CAST(-sum(amount) AS bigint) AS amount
        FROM held GROUP BY host_id, resource_class
        ORDER BY host_id, resource_class COLLATE "C"
    ), given AS (
        UPDATE inventories AS i SET {claim_sql.TAKE}
        FROM (SELECT * FROM asked LIMIT {_MOST}) AS a
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
    )
    SELECT CAST(json_build_object(
        'revision', (SELECT revision FROM changed),
        'placed', (SELECT COALESCE(json_agg(
            json_build_array(uuid, host, node)), '[]') FROM placed),
        'moved', (SELECT COALESCE(json_agg(uuid), '[]') FROM moved),
        'held', (SELECT COALESCE(json_agg(json_build_array(
            consumer_uuid, host_id, resource_class, amount)), '[]')
            FROM held),
        'members', (SELECT COALESCE(json_agg(json_build_array(
            group_uuid, instance_uuid)), '[]') FROM members)
    ) AS text)
"""  # noqa: S608


class Released(msgspec.Struct):
    """What releases gave back.

    :ivar revision: of their change
    :ivar placed: (instance, service host, node) of each claim
    :ivar moved: instances of which a move was released
    :ivar held: (consumer, host id, resource class, amount) of each allocation
    :ivar members: (group, instance) of each that left its server group
    """

    revision: int
    placed: list[tuple[str, str, str]]
    moved: list[str]
    held: list[tuple[str, int, str, int]]
    members: list[tuple[str, str]]

    @property
    def consumers(self) -> list[str]:
        """The instances that held something."""
        return [one[0] for one in self.placed] + [one[0] for one in self.held]


_decode = msgspec.json.Decoder(Released).decode


class PendingRelease:
    """Releases of a batch that are under way, in one round trip.

    They are sent when this is made. *conn* must not be used until they are
    finished.

    :param conn: an open connection with no transaction
    :param asked: by instance
    :param expected: instance -> the project that it has to be of; None: any
    :param items: (idempotency key of a request, instance of it)
    :ivar asked: the instances that callers released
    :ivar lineage: the token of their change
    :ivar sent_at: monotonic time at which they were sent
    :raises StoreUnavailable: it is not known whether anything is released
    """

    def __init__(
        self,
        store: Store,
        conn: Connection,
        asked: Mapping[str, outcomes.Asked],
        expected: Mapping[str, str | None],
        items: Sequence[tuple[str, str]],
    ) -> None:
        self.asked = list(asked)
        self.lineage = new_lineage()
        self.sent_at = time.monotonic()
        self._store = store
        self._conn = conn
        self._statements = _statements(asked, expected, items, self.lineage)
        self._sent: PendingStatements | None = PendingStatements(
            conn, self._statements
        )
        self._fault: Exception | None = None
        self._released: Released | None = None

    def finish(self) -> Released | None:
        """Wait for the database's answer; raises nothing.

        :return: what was released; None: nothing, or it is not known
        """
        try:
            self._released = _decode(self._store.run(self._receive))
        except StatementError as fault:
            if fault.sqlstate not in _REFUSED:
                self._fault = fault
        except Exception as fault:
            self._fault = fault
        return self._released

    def wait(self) -> Released | None:
        """Return what was released, once it is finished.

        :return: None: they cannot be done so, and nothing is done
        :raises StoreTimeout: one waits for a lock; nothing is done
        :raises StoreUnavailable: it is not known whether anything is released
        """
        if self._fault is not None:
            raise self._fault
        return self._released

    def _receive(self) -> Any:
        """Wait for what was sent; after a deadlock it is sent again."""
        sent, self._sent = self._sent, None
        if sent is None:
            sent = PendingStatements(self._conn, self._statements)
        return sent.receive()


def _statements(
    asked: Mapping[str, outcomes.Asked],
    expected: Mapping[str, str | None],
    items: Sequence[tuple[str, str]],
    lineage: str,
) -> list[BoundStatement]:
    """Return the statements that release claims, or fail and do nothing."""
    uuids = postgresql.TextColumn(sorted(asked))
    touched = ChangeRecord(released=sorted(asked))
    values: dict[str, Any] = {
        'uuids': uuids,
        'touched': touched.to_json(),
        'lineage': lineage,
        **rows.pack(
            'postgresql', _EXPECTED, sorted(expected.items()), 'expected'
        ),
        **rows.pack('postgresql', _ITEM, items, 'items'),
        **outcomes.release_values('postgresql', asked, outcomes.ALL),
    }
    record = outcomes.releasing('postgresql').text + ' RETURNING 1'
    return [
        BoundStatement.of(text, values) for text in (record, _LOCK, _RELEASE)
    ]
