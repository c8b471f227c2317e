"""A batch of claims: one type before it is sent, one while it is under way.

Preparing a batch needs no database and may run in any thread. The thread
that owns the connection sends it and waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from scheduler_service.store.claims import transaction
from scheduler_service.store.claims.transaction import Claim, ClaimLost
from scheduler_service.store.connection import Store, Writer, new_lineage

OnDone = Callable[[Exception | None], None]


class ClaimBatch(NamedTuple):
    """Claims that are ready to be sent.

    :ivar claims: of which all are to be made, or none
    :ivar fallback: resource class -> allocation ratio of hosts without one
    :ivar policies: server group policies that a claim must not break
    :ivar lineage: the token of their change
    :ivar statements: what PostgreSQL is sent in one round trip; empty where
        the claims have to be made statement by statement
    """

    claims: Sequence[Claim]
    fallback: Mapping[str, float]
    policies: Collection[str]
    lineage: str
    statements: Sequence[Any] = ()


class PendingClaim:
    """A batch of claims that the database works at, or has worked at.

    :ivar lineage: the token of their change
    """

    def __init__(
        self, receive: Callable[[], int], on_done: OnDone, lineage: str
    ) -> None:
        self.lineage = lineage
        self._receive: Callable[[], int] | None = receive
        self._on_done = on_done
        self._fault: Exception | None = None
        self._revision = 0

    def finish(self) -> None:
        """Wait for the database's answer; raises nothing."""
        receive, self._receive = self._receive, None
        if receive is None:
            return
        try:
            self._revision = receive()
        except Exception as fault:
            self._fault = fault
        self._on_done(self._fault)

    def wait(self) -> int:
        """Wait for the database's answer; return the claims' revision.

        :raises ClaimLost: nothing is claimed
        :raises StoreUnavailable: it is not known whether anything is claimed
        """
        self.finish()
        if self._fault is not None:
            raise self._fault
        return self._revision


def _ignore_result(fault: Exception | None) -> None:
    """Do nothing: whoever waits for the claim gets its result."""


def prepare(
    store: Store,
    claims: Sequence[Claim],
    fallback: Mapping[str, float],
    policies: Collection[str] = (),
) -> ClaimBatch:
    """Return a batch for :func:`send`; the database is not contacted.

    :param fallback: resource class -> allocation ratio of hosts without one
    :param policies: server group policies that a claim must not break
    """
    batch = ClaimBatch(claims, fallback, policies, new_lineage())
    stepwise = any(
        claim.known or claim.move or claim.redelivered for claim in claims
    )
    if stepwise or store.dialect != 'postgresql':
        return batch
    from scheduler_service.store.claims import pg_claim

    return batch._replace(
        statements=pg_claim.statements(
            claims, fallback, policies, batch.lineage
        )
    )


def send(
    store: Store,
    conn: Connection,
    batch: ClaimBatch,
    on_done: OnDone = _ignore_result,
    writing: Connection | None = None,
) -> PendingClaim:
    """Claim for every consumer in one transaction.

    Where the batch travels in one round trip this returns as soon as it is
    sent, and *conn* must not be used until the claim is finished.

    :param conn: an open connection in autocommit mode
    :param on_done: called once with the error or None, when the result is
        known
    :param writing: an open connection for claims that are made statement by
        statement; None: one of the pool
    :raises StoreUnavailable: it is not known whether anything is claimed
    """
    if batch.statements:
        receive = _send(store, conn, batch.statements)
        return PendingClaim(receive, on_done, batch.lineage)

    def work(writer: Writer) -> Writer:
        writer.lineage = batch.lineage
        transaction.claim_all(
            writer, batch.claims, batch.fallback, batch.policies
        )
        return writer

    pending = PendingClaim(
        lambda: store.write(work, writing).revision, on_done, batch.lineage
    )
    pending.finish()
    return pending


def _send(
    store: Store, conn: Connection, statements: Sequence[Any]
) -> Callable[[], int]:
    """Send the statements of a batch.

    :return: waits for the revision; sends them again after a deadlock
    """
    from scheduler_service.store.claims import pg_claim, pg_statements

    under_way = [pg_statements.PendingStatements(conn, statements)]

    def work() -> int:
        pending = (
            under_way.pop()
            if under_way
            else pg_statements.PendingStatements(conn, statements)
        )
        try:
            return int(pending.receive())
        except pg_statements.StatementError as fault:
            if fault.sqlstate in pg_claim.LOST:
                raise ClaimLost from None
            raise

    return lambda: store.run(work)
