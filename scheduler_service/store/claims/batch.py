"""A batch of claims: prepared, sent, and made as one transaction.

Making a batch needs no database and may run in any thread. The thread that
owns the connection sends it and waits for it.

The claim's own statement takes capacity only where it still fits. A row that
it did not change means that another claim was faster. Rows are taken in one
fixed order, so two batches wait for each other and do not deadlock.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception
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
from scheduler_service.store.connection import Store, Writer, new_lineage

_ANTI_AFFINITY = 'anti-affinity'
_MEMBERSHIPS = sa.select(schema.server_group_members).where(
    rows.among(schema.server_group_members.c.instance_uuid)
)


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
        # Batches that meet on instances insert them in one order.
        claims = sorted(claims, key=lambda claim: claim.consumer)
        self._claims = claims
        self._fallback, self._policies = fallback, policies
        self._receive: Callable[[], int] | None = None
        self._fault: Exception | None = None
        self._revision = 0
        if store.dialect == 'postgresql' and not any(
            claim.is_present or claim.move for claim in claims
        ):
            from scheduler_service.store.claims import pg_claims

            self.statements = pg_claims.statements(
                claims, fallback, policies, self.lineage
            )

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
            groups = {claim.group for claim in self._claims if claim.group}
            self._receive = pg_claims.send(
                self._store, conn, self.statements, sorted(groups)
            )
        else:
            self._receive = partial(self._store.write, self.make, conn)
            self.finish()
        return self

    def make(self, writer: Writer) -> int:
        """Make the claims statement by statement; return their revision.

        Rows are locked in this order: instances that are stored, server
        groups, new instances, inventories, the counter.

        :raises ClaimLost: a claim does not fit any more, breaks a policy,
            names a group that appeared or changed its project since the hosts
            were read, its instance is or gets in another group, its consumer
            holds a claim already, its request has an outcome, or what
            a stage did for an earlier claim of it is not undone yet; the
            transaction has to be rolled back
        """
        writer.lineage = self.lineage
        claims, conn = self._claims, writer.conn
        dialect = conn.dialect.name
        stored = [c.consumer for c in claims if c.is_present or c.move]
        locked = lifecycle.lock(conn, stored)
        members = _memberships(conn, locked)
        groups = _lock_groups(conn, claims, members, self._policies)
        kept = _kept(conn, claims)
        try:
            _insert(writer, claims, locked, kept)
        except db_exception.DBDuplicateEntry:
            raise ClaimLost from None
        if groups:
            _join(writer, claims, groups)
        demand = claim_sql.demand_rows(claims, self._fallback, kept)
        if demand:
            updated = conn.execute(
                claim_sql.change_use(dialect, where_it_fits=True),
                claim_sql.parameters(dialect, demand),
            )
            if updated.rowcount != len(demand):
                raise ClaimLost
        # The last look: a release that is committed later finds these claims,
        # as does a claim in a group that a stored instance is put in later.
        revision = writer.take_revision()
        joined = {(claim.group, claim.consumer) for claim in claims}
        if (
            outcomes.came_first(conn, claims)
            or _memberships(conn, locked) - members - joined
        ):
            raise ClaimLost
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


def _record_intents(
    conn: Connection, intents: Sequence[tuple[str, str, int, str]]
) -> bool:
    """Return false where an earlier claim of an instance is being undone."""
    dialect = conn.dialect.name
    recorded = conn.execute(
        sa.text(stage_records.intending(dialect)),
        rows.pack(dialect, stage_records.INTENT, intents),
    )
    return recorded.rowcount == len(intents)


def _kept(
    conn: Connection, claims: Sequence[Claim]
) -> dict[claim_sql.Held, int]:
    """Return what instances hold already of the hosts that they may stay on.

    Once their rows are locked.
    """
    staying = [c.consumer for c in claims if c.move and c.may_stay]
    if not staying:
        return {}
    table = schema.allocations
    query = sa.select(table).where(table.c.consumer_uuid.in_(staying))
    return {tuple(key): amount for *key, amount in conn.execute(query)}


def _insert(
    writer: Writer,
    claims: Sequence[Claim],
    locked: Mapping[str, Any],
    kept: Mapping[claim_sql.Held, int],
) -> None:
    """Insert instances, moves, allocations, and records of stages.

    :param locked: rows of the instances that are stored
    :param kept: what they hold; a class of a host gets one allocation of both
    :raises ClaimLost: a move cannot be made, an instance is not as it was
        reported any more, or an earlier claim of it is being undone
    :raises DBDuplicateEntry: a consumer holds a claim already, or there is a
        record of a stage of an earlier claim
    """
    conn, touched = writer.conn, writer.touched
    placed, moving, reported, held, intents = [], [], [], [], []
    hosts = set()
    for claim in claims:
        consumer, host_id = claim.consumer, claim.host_id
        hosts.add(host_id)
        touched.instances.append(consumer)
        for name, amount in claim.taken(kept).items():
            key = consumer, host_id, name
            held.append((*key, amount + kept.get(key, 0)))
        for stage, document in claim.records:
            intents.append((stage, consumer, host_id, document))
        if claim.move:
            moving.append(claim)
            continue
        if claim.is_present:
            reported.append(claim)
        else:
            placed.append(claim_sql.instance_row(claim))
    touched.load += sorted(hosts)
    if reported:
        _claim_reported(writer, reported)
    if placed:
        rows.insert_packed(
            conn, 'instances', claim_sql.INSTANCE, placed, 'created_at'
        )
    if moving:
        _insert_moves(conn, moving, locked)
    rows.insert_packed(
        conn,
        'allocations',
        claim_sql.ALLOCATION,
        held,
        key=(*claim_sql.HELD,) if kept else (),
    )
    if intents and not _record_intents(conn, intents):
        raise ClaimLost


def _claim_reported(writer: Writer, claims: Sequence[Claim]) -> None:
    """Write claims into the rows of instances that hosts reported elsewhere.

    The row is updated, not replaced: a transaction that waits for it would
    find no row afterwards.

    :raises ClaimLost: an instance holds a claim by now, or is gone
    """
    inst, hosts = schema.instances, schema.hosts
    ids = (
        sa.select(hosts.c.id)
        .join(inst, inst.c.host == hosts.c.host)
        .where(inst.c.uuid.in_([claim.consumer for claim in claims]))
    )
    writer.touched.load += writer.conn.execute(ids).scalars()
    for row in sorted(map(claim_sql.instance_row, claims)):
        values = dict(zip(claim_sql.INSTANCE, row, strict=True))
        claimed = writer.conn.execute(
            sa.update(inst)
            .where(inst.c.uuid == values['uuid'], inst.c.state == 'reported')
            .values(**values, created_at=clock.NOW)
        )
        if not claimed.rowcount:
            raise ClaimLost


def _insert_moves(
    conn: Connection, claims: Sequence[Claim], locked: Mapping[str, Any]
) -> None:
    """Insert the moves of instances, which stay on their hosts for now.

    :param locked: their rows
    :raises ClaimLost: an instance is gone, or is on its new host already and
        may not stay there
    :raises DBDuplicateEntry: an instance moves already
    """
    for claim in claims:
        row = locked.get(claim.consumer)
        if row is None or (row.host == claim.host and not claim.may_stay):
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


def _memberships(
    conn: Connection, instances: Iterable[str]
) -> set[tuple[str, str]]:
    """Return the (group, instance) pairs of instances."""
    found = rows.select_among(conn, _MEMBERSHIPS, instances)
    return {(row.group_uuid, row.instance_uuid) for row in found}


def _lock_groups(
    conn: Connection,
    claims: Sequence[Claim],
    stored: Collection[tuple[str, str]],
    policies: Collection[str],
) -> dict[str, dict[str, set[str]]]:
    """Lock the groups of all instances, and check their strict policies.

    Groups are locked in the order of their uuids, and places of members are
    read then. Of two daemons that place members of a group, the second
    therefore sees the members of the first. Members are released without
    that lock: a claim may still see a member that has gone, and is then lost
    although it could have been made.

    :param stored: (group, instance) pairs of instances whose rows are locked:
        none of them joins a group with another claim meanwhile
    :param policies: the policies that are strict
    :return: the groups that exist, with the hosts of each member
    :raises ClaimLost: a strict policy would be broken, a group has another
        project by now, or the instance is in others
    """
    groups_of: dict[str, set[str]] = defaultdict(set)
    for uuid, instance in stored:
        groups_of[instance].add(uuid)
    others = set()
    for claim in claims:
        own = groups_of[claim.consumer]
        if claim.group and claim.group not in own:
            if own:
                others.add(claim.group)
            own.add(claim.group)
    uuids = set[str]().union(*groups_of.values())
    if not uuids:
        return {}
    table = schema.server_groups
    groups = conn.execute(
        sa.select(
            table.c.uuid,
            table.c.policy,
            table.c.max_server_per_host,
            table.c.project_id,
        )
        .where(table.c.uuid.in_(uuids))
        .order_by(table.c.uuid)
        .with_for_update()
    ).all()
    owners = claim_sql.group_owners(claims)
    for group in groups:
        owner = group.project_id or ''
        if group.uuid in others or owners.get(group.uuid, owner) != owner:
            raise ClaimLost
    members = _members(conn, [group.uuid for group in groups])
    for group in groups:
        taken = {
            claim.consumer: claim.host
            for claim in claims
            if group.uuid in groups_of[claim.consumer]
        }
        if group.policy in policies and not _keeps_policy(
            group, members[group.uuid], taken
        ):
            raise ClaimLost(claim_sql.breaks_policy([group.uuid]))
    return members


def _join(
    writer: Writer,
    claims: Sequence[Claim],
    groups: Mapping[str, Mapping[str, Any]],
) -> None:
    """Add instances to their groups.

    After their rows: those wait for a release that is under way, which takes
    the memberships with it that were read before.

    :param claims: each with its group
    :param groups: those that exist and are locked, with their members as read
    """
    joining = [
        (claim.group, claim.consumer)
        for claim in claims
        if claim.group and claim.group in groups
    ]
    new = [
        (group, uuid) for group, uuid in joining if uuid not in groups[group]
    ]
    if joining and claim_sql.join_groups(writer.conn, joining) != len(new):
        new = joining
    writer.touched.groups += sorted({group for group, _ in new})


def _members(
    conn: Connection, groups: Sequence[str]
) -> dict[str, dict[str, set[str]]]:
    """Return the hosts of each member, by group and instance.

    A member that is not placed has no host, a member that moves has two.
    """
    members, instances = schema.server_group_members, schema.instances
    moves = schema.moves
    query = (
        sa.select(
            members.c.group_uuid,
            members.c.instance_uuid,
            instances.c.host,
            moves.c.host,
        )
        .outerjoin(instances, instances.c.uuid == members.c.instance_uuid)
        .outerjoin(moves, moves.c.instance_uuid == members.c.instance_uuid)
        .where(members.c.group_uuid.in_(groups))
    )
    hosts_of: dict[str, dict[str, set[str]]] = {uuid: {} for uuid in groups}
    for group, uuid, *hosts in conn.execute(query):
        hosts_of[group][uuid] = {host for host in hosts if host}
    return hosts_of


def _keeps_policy(
    group: Any, members: Mapping[str, set[str]], taken: Mapping[str, str]
) -> bool:
    """Whether claims keep the policy of a group on the hosts that they take.

    What is wrong elsewhere does not matter. Under affinity they take a host
    that has members which do not move, unless all members move with them.

    :param members: the hosts of each member
    :param taken: instance -> the host that is claimed for it
    """
    if group.policy == _ANTI_AFFINITY:
        new = {
            h for uuid, h in taken.items() if h not in members.get(uuid, ())
        }
        counts = Counter(
            host
            for uuid in members.keys() | taken.keys()
            for host in {*members.get(uuid, ()), taken.get(uuid, '')}
        )
        limit = group.max_server_per_host or 1
        return all(counts[host] <= limit for host in new)
    moving = sum(
        host not in (members.get(uuid) or (host,))
        for uuid, host in taken.items()
    )
    if 0 < moving < len(taken):
        return False
    others = [members[uuid] for uuid in members.keys() - taken.keys()]
    settled = [hosts for hosts in others if len(hosts) == 1]
    own = [members.get(uuid, set()) for uuid in taken]
    new = {*taken.values()}.difference(*settled, *own)
    return not new or (len(new) == 1 and not any(others))
