"""Claims: capacity taken for consumers, all of a batch or nothing.

The claim's own statement takes capacity only where it still fits; a row it
did not change means somebody was faster. Rows are taken in one fixed order,
so two batches wait for each other instead of locking each other out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from oslo_db import exception as db_exception
from sqlalchemy.engine import Connection

from scheduler_service.store import claim_sql, groups, rows, schema
from scheduler_service.store.connection import (
    ChangeRecord,
    Store,
    Writer,
)

Ended = Callable[[Exception | None], None]


class ClaimLost(Exception):
    """Somebody was faster; nothing of the batch is claimed."""


class Claim(msgspec.Struct, frozen=True):
    """What one consumer takes of one host.

    :ivar amounts: resource class -> amount
    :ivar ratios: resource class -> ratio to check under instead of the host's
    :ivar document: JSON, the instance's document less its place
    :ivar placement: JSON, what is answered for it
    :ivar known: whether the store has the instance already, without a claim
    :ivar group: uuid of the server group that the instance is to be in
    :ivar move: whether it is beside the place that the instance has
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
    known: bool = False
    group: str | None = None
    move: bool = False


def take(
    writer: Writer,
    claims: Sequence[Claim],
    fallback: Mapping[str, float],
    policies: Collection[str] = (),
) -> None:
    """Claim for every consumer, or raise with nothing claimed.

    :param fallback: resource class -> configured ratio
    :param policies: of server groups that are to hold strictly
    :raises ClaimLost: one of them does not fit any more, or is there already
    """
    conn = writer.conn
    dialect = rows.dialect_of(conn)
    joining = {c.consumer: (c.group, c.host) for c in claims if c.group}
    if joining and not groups.join(writer, joining, policies):
        raise ClaimLost
    asked = _sums(claims, fallback)
    if asked:
        taken = conn.execute(
            claim_sql.taking(dialect), claim_sql.parameters(dialect, asked)
        )
        if taken.rowcount != len(asked):
            raise ClaimLost
    known = [one.consumer for one in claims if one.known and not one.move]
    if known:
        _replace(writer, known)
    placed = _instances([one for one in claims if not one.move])
    moving = [one for one in claims if one.move]
    held = _allocations(claims)
    try:
        if placed:
            rows.insert_packed(conn, 'instances', claim_sql.INSTANCE, placed)
        if moving:
            _move(conn, moving)
        if held:
            rows.insert_packed(conn, 'allocations', claim_sql.ALLOCATION, held)
    except db_exception.DBDuplicateEntry:
        raise ClaimLost from None
    writer.touched.load += sorted({one.host_id for one in claims})
    writer.touched.instances += [one.consumer for one in claims]


def _nobody(fault: Exception | None) -> None:
    """Tell nobody."""


class Outcome:
    """How a claim ends that is being made.

    :param receive: waits for its revision, or raises
    :param ended: is told the fault, or None
    """

    def __init__(
        self, receive: Callable[[], int], ended: Ended = _nobody
    ) -> None:
        self._receive: Callable[[], int] | None = receive
        self._ended = ended
        self._fault: Exception | None = None
        self._revision = 0

    def finish(self) -> None:
        """Wait for the end."""
        receive, self._receive = self._receive, None
        if receive is None:
            return
        try:
            self._revision = receive()
        except Exception as fault:
            self._fault = fault
        self._ended(self._fault)

    def result(self) -> int:
        """Return the claim's revision.

        :raises ClaimLost: nothing is claimed
        :raises StoreUnavailable: it is not known whether anything is
        """
        self.finish()
        if self._fault is not None:
            raise self._fault
        return self._revision


class Prepared(NamedTuple):
    """Claims that can be made without further ado.

    :ivar bound: all of :func:`take` and the seal in one statement, where the
        database has one for it
    """

    claims: Sequence[Claim]
    fallback: Mapping[str, float]
    policies: Collection[str]
    bound: Any = None


def prepare(
    store: Store,
    claims: Sequence[Claim],
    fallback: Mapping[str, float],
    policies: Collection[str] = (),
) -> Prepared:
    """Return claims as :func:`begin` takes them; nothing is done yet.

    :param fallback: resource class -> configured ratio
    :param policies: of server groups that are to hold strictly
    """
    plain = not any(one.known or one.group or one.move for one in claims)
    prepared = Prepared(claims, fallback, policies)
    if plain and store.dialect == 'postgresql':
        return prepared._replace(bound=_in_one_statement(claims, fallback))
    return prepared


def begin(
    store: Store, conn: Connection, prepared: Prepared, ended: Ended = _nobody
) -> Outcome:
    """Claim for every consumer in one transaction.

    Until the outcome is known *conn* is not to be used otherwise; where the
    database takes a claim in one statement it is known later.

    :param conn: a held connection that commits each statement by itself
    :param ended: is told the fault, or None, once the outcome is known
    :raises StoreUnavailable: it is not known whether anything will be claimed
    """
    if prepared.bound is not None:
        return Outcome(_sent(store, conn, prepared.bound), ended)

    def work(writer: Writer) -> Writer:
        take(writer, prepared.claims, prepared.fallback, prepared.policies)
        return writer

    outcome = Outcome(lambda: store.write(work).revision, ended)
    outcome.finish()
    return outcome


def _in_one_statement(
    claims: Sequence[Claim], fallback: Mapping[str, float]
) -> Any:
    """Return all of :func:`take` and the seal in one round trip."""
    from scheduler_service.store import driver

    touched = ChangeRecord(
        load=sorted({one.host_id for one in claims}),
        instances=[one.consumer for one in claims],
    )
    statement, values = _claiming(claims, fallback)
    values['touched'] = touched.to_json()
    values['now'] = time.time()
    return driver.Bound.of(statement, values)


def _claiming(
    claims: Sequence[Claim], fallback: Mapping[str, float]
) -> tuple[str, dict[str, Any]]:
    """Return PostgreSQL's statement for claims, and its parameters."""
    if len(claims) == 1 and claims[0].amounts:
        asked = _sums(claims, fallback)
        return claim_sql.claiming_one(asked, *_instances(claims))
    kinds: dict[Any, int] = {}
    places = []
    for one in claims:
        what = (*one.amounts.items(),), (*one.ratios.items(),)
        kind = kinds.setdefault(what, len(kinds))
        places.append(
            (
                one.consumer,
                one.host_id,
                kind,
                one.host,
                one.node,
                one.project_id,
                one.request_id,
                one.document,
                one.placement,
            )
        )
    taking = [
        (kind, name, amount, dict(ratios).get(name), fallback.get(name, 1.0))
        for (amounts, ratios), kind in kinds.items()
        for name, amount in amounts
    ]
    return claim_sql.claiming_many(places, taking)


def _sent(store: Store, conn: Connection, bound: Any) -> Callable[[], int]:
    """Send a claim.

    :return: receives the revision; sends it again where it met a deadlock
    """
    from scheduler_service.store import driver

    under_way = [driver.Sent(conn, bound)]

    def work() -> int:
        sent = under_way.pop() if under_way else driver.Sent(conn, bound)
        try:
            return int(sent.receive())
        except driver.Refused as fault:
            if fault.sqlstate in claim_sql.LOST:
                raise ClaimLost from None
            raise

    return lambda: store.once(work)


def placements(
    conn: Connection, consumers: Sequence[str], moving: bool = False
) -> dict[str, dict[str, Any]]:
    """Return what was answered for consumers that hold a claim.

    :param moving: the claims beside those where they are
    """
    table: Any = schema.moves if moving else schema.instances
    uuid = table.c.instance_uuid if moving else table.c.uuid
    query = sa.select(uuid, table.c.placement).where(
        uuid.in_(consumers), table.c.placement.is_not(None)
    )
    return {
        found: msgspec.json.decode(placement)
        for found, placement in conn.execute(query)
    }


def _replace(writer: Writer, known: Sequence[str]) -> None:
    """Take reported instances away, to be claimed elsewhere.

    One that holds a claim by now stays, and cannot be put again.
    """
    inst, hosts = schema.instances, schema.hosts
    replaced = inst.c.uuid.in_(known) & (inst.c.state == 'reported')
    ids = (
        sa.select(hosts.c.id)
        .join(inst, inst.c.host == hosts.c.host)
        .where(replaced)
    )
    writer.touched.load += writer.conn.execute(ids).scalars()
    writer.conn.execute(sa.delete(inst).where(replaced))


def _move(conn: Connection, claims: Sequence[Claim]) -> None:
    """Note where instances move to; they stay where they are for now.

    :raises ClaimLost: one is gone, or is on that host by now
    :raises DBDuplicateEntry: one moves already
    """
    table = schema.instances
    there = conn.execute(
        sa.select(table.c.uuid, table.c.host)
        .where(table.c.uuid.in_([one.consumer for one in claims]))
        .order_by(table.c.uuid)
        .with_for_update()
    )
    places = {row.uuid: row.host for row in there}
    for one in claims:
        if places.get(one.consumer, one.host) == one.host:
            raise ClaimLost
    now = time.time()
    rows.insert(
        conn,
        schema.moves,
        [
            {
                'instance_uuid': one.consumer,
                'host_id': one.host_id,
                'host': one.host,
                'node': one.node,
                'request_id': one.request_id,
                'placement': one.placement,
                'created_at': now,
            }
            for one in claims
        ],
    )


def _sums(
    claims: Sequence[Claim], fallback: Mapping[str, float]
) -> list[list[Any]]:
    """Add up what the claims take of each host and class, in fixed order.

    :return: rows in the order of ``claim_sql.ASK``
    """
    sums: dict[tuple[int, str], list[Any]] = {}
    for one in claims:
        for name, amount in one.amounts.items():
            key = one.host_id, name
            row = sums.get(key)
            if row is None:
                ratio = one.ratios.get(name)
                sums[key] = [*key, amount, ratio, fallback.get(name, 1.0)]
            else:
                row[2] += amount
    return [sums[key] for key in sorted(sums)]


def _allocations(claims: Sequence[Claim]) -> list[tuple[Any, ...]]:
    """Return rows in the order of ``claim_sql.ALLOCATION``."""
    return [
        (one.consumer, one.host_id, name, amount)
        for one in claims
        for name, amount in one.amounts.items()
    ]


def _instances(claims: Sequence[Claim]) -> list[tuple[Any, ...]]:
    """Return rows in the order of ``claim_sql.INSTANCE``."""
    now = time.time()
    return [
        (
            one.consumer,
            one.host,
            one.node,
            'claimed',
            one.project_id,
            one.request_id,
            one.document,
            one.placement,
            now,
        )
        for one in claims
    ]
