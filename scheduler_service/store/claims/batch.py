"""A batch of claims: prepared, sent, and made as one transaction.

Making a batch needs no database and may run in any thread. The thread that
owns the connection sends it and waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from oslo_db import exception as db_exception
from sqlalchemy.engine import Connection

from scheduler_service.engine.ports import ClaimLost
from scheduler_service.store.claims import claim_steps
from scheduler_service.store.claims.claim_sql import Claim
from scheduler_service.store.connection import Store, Writer, new_lineage


class ClaimBatch:
    """Claims that are made as one transaction, all of them or none.

    :param claims: of at least one consumer
    :param fallback: resource class -> allocation ratio of hosts without one
    :param policies: server group policies that a claim must not break
    :ivar lineage: the token of their change
    :ivar statements: what PostgreSQL is sent in one round trip; empty where
        the claims have to be made statement by statement
    :ivar sent_at: monotonic time before they were sent
    """

    def __init__(
        self,
        store: Store,
        claims: Sequence[Claim],
        fallback: Mapping[str, float],
        policies: Collection[str] = (),
    ) -> None:
        self.instances = len(claims)
        self.lineage = new_lineage()
        self.sent_at = 0.0
        self.statements: Sequence[Any] = ()
        self._store = store
        self._receive: Callable[[], int] | None = None
        self._fault: Exception | None = None
        self._revision = 0
        # Batches that meet on instances insert them in one order.
        self._claims = sorted(claims, key=lambda claim: claim.consumer)
        self._steps = claim_steps.steps(
            store.dialect, self._claims, fallback, policies
        )
        if store.dialect == 'postgresql':
            from scheduler_service.store.claims import pg_claims

            self.statements = pg_claims.statements(self._steps, self.lineage)

    def send(self, conn: Connection | None) -> ClaimBatch:
        """Claim for every consumer in one transaction.

        Where the batch travels in one round trip this returns as soon as it is
        sent, and *conn* must not be used until the claim is finished.

        :param conn: an open connection, for statements in autocommit mode;
            without these, None: a connection of the pool
        :return: this very batch
        :raises StoreUnavailable: the claims may have been made or not
        """
        self.sent_at = time.monotonic()
        if self.statements:
            from scheduler_service.store.claims import pg_claims

            assert conn is not None
            self._receive = pg_claims.send(
                self._store, conn, self.statements, self._steps
            )
        else:
            self._receive = partial(self._store.write, self.make, conn)
            self.finish()
        return self

    def make(self, writer: Writer) -> int:
        """Make the claims statement by statement; return their revision.

        :raises ClaimLost: a claim does not fit any more, breaks a policy,
            names a group that appeared or changed its project since the hosts
            were read, its instance is or gets in another group, its consumer
            holds a claim already, its request has an outcome, or what a stage
            did for an earlier claim of it is not undone yet; the transaction
            has to be rolled back
        """
        writer.lineage = self.lineage
        conn, touched, steps = writer.conn, writer.touched, self._steps
        try:
            for step in steps.before:
                step.execute(conn)
            if steps.hold is not None:
                steps.hold.execute(conn)
        except db_exception.DBDuplicateEntry:
            raise ClaimLost from None
        touched.load += steps.touched.load
        touched.instances += steps.touched.instances
        for kind, query in steps.more.items():
            found = conn.execute(query.statement, query.values)
            getattr(touched, kind).extend(sorted(found.scalars()))
        revision = writer.take_revision()
        for step in steps.after:
            step.execute(conn)
        return revision

    def finish(self) -> None:
        """Wait for the database's answer; raises nothing."""
        receive, self._receive = self._receive, None
        if receive is None:
            return
        try:
            self._revision = receive()
        except Exception as fault:
            self._fault = fault

    def wait(self) -> int:
        """Wait for the database's answer; return the claims' revision.

        :raises ClaimLost: nothing is claimed
        :raises StoreUnavailable: the claims may have been made or not
        """
        self.finish()
        if self._fault is not None:
            raise self._fault
        return self._revision
