"""The claims of a batch as statements of one transaction, on any database.

Stateless: runs on the thread that owns the writing transaction.

The claim's own statement takes capacity only where it still fits. A row that
it did not change means that another claim was faster. Rows are taken in one
fixed order, so two batches wait for each other and do not deadlock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from oslo_db import exception as db_exception
from sqlalchemy.engine import Connection

from scheduler_service.store import rows, schema
from scheduler_service.store.claims import (
    claim_sql,
    group_policies,
    outcomes,
)
from scheduler_service.store.connection import Writer


class ClaimLost(Exception):
    """Another claim was faster; nothing of the batch is claimed."""


class Claim(msgspec.Struct, frozen=True):
    """What one consumer takes of one host.

    :ivar amounts: resource class -> amount
    :ivar ratios: resource class -> allocation ratio to check under instead
        of the host's own
    :ivar document: JSON, the instance's document without its place
    :ivar placement: JSON, the placement that its caller gets
    :ivar known: whether the store has the instance already, without a claim
    :ivar group: uuid of the server group that the instance is to be in
    :ivar group_owner: project of the group when the hosts were read, which
        was checked; empty: it had none; None: there was no such group
    :ivar move: whether this is a second claim, beside the instance's present
        place
    :ivar key: idempotency key of the request; None: it has none
    :ivar redelivered: whether the request may be processed elsewhere, too:
        its outcome is then recorded under its key, which only one can do
    :ivar releases_seen: with *redelivered*: time of the last release of the
        request's instances that concerns its project and does not cancel it,
        by the database's clock
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
    group_owner: str | None = ''
    move: bool = False
    key: str | None = None
    redelivered: bool = False
    releases_seen: float = 0.0


def claim_all(
    writer: Writer,
    claims: Sequence[Claim],
    fallback: Mapping[str, float],
    policies: Collection[str] = (),
) -> None:
    """Claim for every consumer.

    :param fallback: resource class -> allocation ratio of hosts without one
    :param policies: server group policies that a claim must not break
    :raises ClaimLost: one does not fit any more, breaks a policy, names a
        group that came or changed hands since the hosts were read, or its
        consumer holds a claim already; the transaction has to be rolled back
    """
    conn = writer.conn
    dialect = rows.dialect_of(conn)
    _check_releases(conn, claims)
    joining = {c.consumer: (c.group, c.host) for c in claims if c.group}
    owners = group_owners(claims)
    if joining and not group_policies.join(writer, joining, policies, owners):
        raise ClaimLost
    asked = ask_rows(claims, fallback)
    if asked:
        taken = conn.execute(
            claim_sql.take_capacity(dialect),
            claim_sql.parameters(dialect, asked),
        )
        if taken.rowcount != len(asked):
            raise ClaimLost
    known = [c.consumer for c in claims if c.known and not c.move]
    if known:
        _remove_reported(writer, known)
    try:
        _record_redelivered(conn, claims)
        _insert_rows(conn, claims)
    except db_exception.DBDuplicateEntry:
        raise ClaimLost from None
    writer.touched.load += sorted({claim.host_id for claim in claims})
    writer.touched.instances += [claim.consumer for claim in claims]


def _check_releases(conn: Connection, claims: Sequence[Claim]) -> None:
    """Check that no instance of a redelivered request was released meanwhile.

    :raises ClaimLost: one was; whether that cancels the request is not known
    """
    redelivered = [claim for claim in claims if claim.redelivered]
    if not redelivered:
        return
    last = outcomes.lock_releases(
        conn, [(one.consumer, one.project_id) for one in redelivered]
    )
    if last > min(one.releases_seen for one in redelivered):
        raise ClaimLost


def _record_redelivered(conn: Connection, claims: Sequence[Claim]) -> None:
    """Record that redelivered requests claim.

    :raises DBDuplicateEntry: one has an outcome already
    """
    keys = {claim.key for claim in claims if claim.redelivered and claim.key}
    outcomes.add(
        conn, [outcomes.Outcome(key, outcomes.CLAIMED) for key in keys]
    )


def _insert_rows(conn: Connection, claims: Sequence[Claim]) -> None:
    """Insert instances, moves and allocations.

    :raises DBDuplicateEntry: a consumer holds a claim already
    """
    placed = instance_rows([claim for claim in claims if not claim.move])
    moving = [claim for claim in claims if claim.move]
    held = _allocation_rows(claims)
    if placed:
        rows.insert_packed(
            conn, 'instances', claim_sql.INSTANCE, placed, 'created_at'
        )
    if moving:
        _insert_moves(conn, moving)
    if held:
        rows.insert_packed(conn, 'allocations', claim_sql.ALLOCATION, held)


def _remove_reported(writer: Writer, known: Sequence[str]) -> None:
    """Remove reported instances, which are claimed on another host.

    An instance that holds a claim by now stays, so that claiming for it
    fails.
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


def _insert_moves(conn: Connection, claims: Sequence[Claim]) -> None:
    """Insert where instances move to; they stay where they are for now.

    :raises ClaimLost: one is gone, or is on its new host already
    :raises DBDuplicateEntry: one moves already
    """
    table = schema.instances
    locked = conn.execute(
        sa.select(table.c.uuid, table.c.host)
        .where(table.c.uuid.in_([claim.consumer for claim in claims]))
        .order_by(table.c.uuid)
        .with_for_update()
    )
    host_of = {row.uuid: row.host for row in locked}
    for claim in claims:
        if host_of.get(claim.consumer, claim.host) == claim.host:
            raise ClaimLost
    rows.insert(
        conn,
        schema.moves,
        [
            {
                'instance_uuid': claim.consumer,
                'host_id': claim.host_id,
                'host': claim.host,
                'node': claim.node,
                'request_id': claim.request_id,
                'placement': claim.placement,
                'idempotency_key': claim.key,
            }
            for claim in claims
        ],
    )


def group_owners(claims: Sequence[Claim]) -> dict[str, str | None]:
    """Return the projects of groups as they were read, by uuid."""
    return {c.group: c.group_owner for c in claims if c.group}


def ask_rows(
    claims: Sequence[Claim], fallback: Mapping[str, float]
) -> list[list[Any]]:
    """Add up what the claims take of each host and class, in fixed order.

    :return: rows in the order of ``claim_sql.ASK``
    """
    sums: dict[tuple[int, str], list[Any]] = {}
    for claim in claims:
        for name, amount in claim.amounts.items():
            key = claim.host_id, name
            row = sums.get(key)
            if row is None:
                ratio = claim.ratios.get(name)
                sums[key] = [*key, amount, ratio, fallback.get(name, 1.0)]
            else:
                row[2] += amount
    return [sums[key] for key in sorted(sums)]


def _allocation_rows(claims: Sequence[Claim]) -> list[tuple[Any, ...]]:
    """Return rows in the order of ``claim_sql.ALLOCATION``."""
    return [
        (claim.consumer, claim.host_id, name, amount)
        for claim in claims
        for name, amount in claim.amounts.items()
    ]


def instance_rows(claims: Sequence[Claim]) -> list[tuple[Any, ...]]:
    """Return rows in the order of ``claim_sql.INSTANCE``."""
    return [
        (
            claim.consumer,
            claim.host,
            claim.node,
            'claimed',
            claim.project_id,
            claim.request_id,
            claim.document,
            claim.placement,
            claim.key,
        )
        for claim in claims
    ]
