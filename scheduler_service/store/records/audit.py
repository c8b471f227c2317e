"""Compares use with allocations and groups with policies; corrects use."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import clock, rows, schema
from scheduler_service.store.claims import claim_sql, lifecycle
from scheduler_service.store.connection import Writer, in_chunks

_SHOWN = 1000
_OF_HOST = schema.allocations.c.host_id >= 0
# The instance of a finding.
_CONSUMER = schema.instances.c.uuid.label('consumer_uuid')
_LOST_MOVE = ~sa.exists().where(
    schema.instances.c.uuid == schema.moves.c.instance_uuid
)
# Fields of findings that queries have as columns.
_PLACES = 'host', 'aggregate', 'server_group', 'resource_class'
# Claims that no host reports for longer, in seconds.
_UNREPORTED_S = 3600.0


class Finding(msgspec.Struct, kw_only=True):
    """One inconsistency.

    :ivar kind: ``used`` (use is not what is reported plus allocated),
        ``overcommitted`` (more is allocated than the limit), ``orphaned`` (an
        allocation of something that the host does not offer any more),
        ``unclaimed`` (an allocation without a claim),
        ``unallocated`` (a claim that has no allocations of what it promised),
        ``move`` (of an instance without a claim), ``membership`` (an instance
        that is in no server group, but was claimed for one, or that is in one
        that does not exist), ``policy`` (of a server group, which does not
        hold), ``stage`` (records of a stage that is not configured) or ``pod``
        (of a cluster, whose claim is not what it takes)
    """

    kind: str
    host: str | None = None
    aggregate: str | None = None
    server_group: str | None = None
    resource_class: str | None = None
    consumer: str | None = None
    text: str


class Audit(msgspec.Struct):
    """How many rows were checked, and at most 1,000 findings of each kind.

    :ivar findings: what is wrong
    :ivar unmatched: what may be right: ``running`` (an instance that its host
        reports and that has no claim) and ``unreported`` (a claim of more than
        an hour that no host has reported)
    """

    inventories: int
    allocations: int
    claims: int
    server_groups: int
    findings: list[Finding]
    unmatched: list[Finding]


def audit(
    conn: Connection,
    fallback: Mapping[str, float],
    stages: Collection[str] | None = None,
) -> Audit:
    """Check everything that claims write; nothing is changed.

    :param fallback: resource class -> allocation ratio of hosts without one
    :param stages: names of those that are configured; None: it is not known
    """

    def count(table: Any, *where: Any) -> int:
        query = sa.select(sa.func.count()).select_from(table).where(*where)
        return int(conn.execute(query).scalar_one())

    def findings(*checks: tuple[str, Any, str]) -> list[Finding]:
        return [
            Finding(
                kind=kind,
                text=text.format_map(row),
                consumer=row.get('consumer_uuid'),
                **{name: row[name] for name in _PLACES if name in row},
            )
            for kind, found, text in checks
            for row in (
                found[:_SHOWN]
                if isinstance(found, list)
                else conn.execute(found.limit(_SHOWN)).mappings()
            )
        ]

    inst, moves = schema.instances, schema.moves
    old = clock.read(conn) - _UNREPORTED_S
    instances = sa.select(inst.c.host, _CONSUMER).order_by(inst.c.uuid)
    moved = moves.c.instance_uuid.label('consumer_uuid')
    lost_moves = sa.select(moves.c.host, moved).where(_LOST_MOVE)
    unallocated = [
        {**row._mapping, 'promised': _promised(amounts)}
        for row, amounts in _unallocated(conn)[:_SHOWN]
    ]
    return Audit(
        inventories=count(schema.inventories, schema.IS_OFFERED),
        allocations=count(schema.allocations),
        claims=count(inst, inst.c.state != 'reported'),
        server_groups=count(schema.server_groups),
        findings=findings(
            ('used', _differing(),
             '{used} are used, {right_use} are reported and allocated'),
            ('overcommitted', _overcommitted(fallback),
             '{used} are used, {most:g} may be'),
            ('orphaned', _orphaned(),
             '{amount} are allocated of what is not offered any more '
             '(host id {host_id})'),
            ('unclaimed', _unclaimed(),
             'holds allocations without a claim'),
            ('unallocated', unallocated,
             'is claimed here and has no allocations; {promised}'),
            ('move', lost_moves,
             'moves here, but there is no instance of this uuid'),
            ('membership', _members_of_nothing(),
             'is a member of a server group that does not exist'),
            ('membership', _lost_members(conn),
             'was claimed as a member, and is none'),
            ('policy', _together(),
             '{number} members are on this host, {most} may be'),
            ('policy', _apart(),
             'members are on {number} hosts, and belong on one'),
            ('stage', _records_of_others(stages),
             '{number} records of the stage {stage}, which is not '
             'configured: what it did is not undone'),
        ),
        unmatched=findings(
            ('running', instances.where(inst.c.state == 'reported'),
             'is reported by its host, and has no claim'),
            ('unreported',
             instances.where(
                 inst.c.state == 'claimed', inst.c.created_at < old
             ),
             'was claimed more than an hour ago, and never reported'),
        ),
    )  # fmt: skip


def fix(writer: Writer) -> int:
    """Correct what can be corrected; return how many rows that were.

    Allocations without a claim are released, claims get back the allocations
    that they promised, and use is set to what is reported plus what is then
    allocated. A host that is overcommitted stays so: instances have to be
    moved away from it.
    """
    cures = (
        _drop_moves, _release_unclaimed, _restore_allocations, _drop_orphaned,
        _correct_use,
    )  # fmt: skip
    return sum(cure(writer) for cure in cures)


def _amounts(*columns: Any) -> Any:
    """Return the query for what hosts and aggregates offer.

    :param columns: more of them
    """
    offered, hosts = schema.inventories, schema.hosts
    return (
        sa.select(
            offered.c.host_id,
            offered.c.resource_class,
            offered.c.used,
            hosts.c.host,
            schema.aggregates.c.name.label('aggregate'),
            *columns,
        )
        .outerjoin(hosts, hosts.c.id == offered.c.host_id)
        .outerjoin(schema.aggregates, claim_sql.is_of_aggregate(offered))
    )


def _differing() -> Any:
    offered, held = schema.inventories.c, schema.allocations.c
    # A subquery for each: MariaDB has no index on sums of all.
    allocated = sa.select(sa.func.coalesce(sa.func.sum(held.amount), 0)).where(
        held.host_id == offered.host_id,
        held.resource_class == offered.resource_class,
    )
    right = (offered.reported + allocated.scalar_subquery()).label('right_use')
    query = _amounts(right).where(offered.used != right)
    return query.order_by(offered.host_id, offered.resource_class)


def _overcommitted(fallback: Mapping[str, float]) -> Any:
    """Return the query for inventories of which claims hold too much.

    A host that exceeds its limit by what it reports itself is not
    overcommitted by claims.
    """
    offered = schema.inventories.c
    # The rule of allocation ratios: see ``ResourceColumns.capacity``.
    default = sa.case(
        dict(fallback) or {'': 0.0}, value=offered.resource_class, else_=0.0
    )
    stated = sa.func.nullif(offered.allocation_ratio, 0)
    ratio = sa.func.coalesce(stated, default)
    limit = ((offered.total - offered.reserved) * ratio).label('most')
    return (
        _amounts(limit)
        .where(
            schema.IS_OFFERED,
            offered.used > limit,
            offered.used > offered.reported,
            # A host with 0 vCPUs does not collect these figures.
            ~((offered.resource_class == 'VCPU') & (offered.total == 0)),
        )
        .order_by(schema.hosts.c.host, offered.resource_class)
    )


def _not_offered() -> Any:
    held, offered = schema.allocations, schema.inventories
    return ~sa.exists().where(
        offered.c.host_id == held.c.host_id,
        offered.c.resource_class == held.c.resource_class,
        schema.IS_OFFERED,
    )


def _orphaned() -> Any:
    held = schema.allocations
    query = sa.select(held).where(_not_offered())
    return query.order_by(held.c.consumer_uuid)


def _unclaimed() -> Any:
    """Return the query for (consumer, host id, host) without a claim.

    A claim is an instance that is claimed on the host, or moves to it; of an
    aggregate, on or to any host.
    """
    held, hosts = schema.allocations, schema.hosts
    inst, moves = schema.instances, schema.moves
    return (
        sa.select(held.c.consumer_uuid, held.c.host_id, hosts.c.host)
        .distinct()
        .outerjoin(hosts, hosts.c.id == held.c.host_id)
        .outerjoin(
            inst,
            (inst.c.uuid == held.c.consumer_uuid)
            & ((inst.c.host == hosts.c.host) | ~_OF_HOST)
            & (inst.c.state != 'reported'),
        )
        .outerjoin(
            moves,
            (moves.c.instance_uuid == held.c.consumer_uuid)
            & ((moves.c.host_id == held.c.host_id) | ~_OF_HOST),
        )
        .where(inst.c.uuid.is_(None), moves.c.instance_uuid.is_(None))
        .order_by(held.c.consumer_uuid, held.c.host_id)
    )


def _unallocated(
    conn: Connection, consumers: Any = None
) -> list[tuple[Any, dict[tuple[int, str], int] | None]]:
    """Return claims without allocations of their hosts, and their promises.

    Each is a row with ``consumer_uuid``, ``host_id`` and ``host``; for the
    promise see :func:`claim_sql.promised`.

    :param consumers: only those of these instances
    """
    inst, moves, hosts = schema.instances, schema.moves, schema.hosts
    placed = sa.select(
        _CONSUMER, hosts.c.id.label('host_id'), inst.c.host, inst.c.placement
    ).where(
        hosts.c.host == inst.c.host,
        hosts.c.node == inst.c.node,
        inst.c.state != 'reported',
        inst.c.placement.is_not(None),
    )
    moving = sa.select(
        moves.c.instance_uuid, moves.c.host_id, moves.c.host, moves.c.placement
    )
    claims = sa.union_all(placed, moving).subquery().c
    held = schema.allocations.c
    query = sa.select(*claims).where(
        ~sa.exists().where(
            held.consumer_uuid == claims.consumer_uuid,
            held.host_id == claims.host_id,
        )
    )
    if consumers is not None:
        query = query.where(claims.consumer_uuid.in_(consumers))
    return [
        (row, promised)
        for row in conn.execute(query)
        # What a claim took is stored with its placement.
        for promised in [claim_sql.promised(row.placement, row.host_id)]
        if promised is None or any(key[0] == row.host_id for key in promised)
    ]


def _members_of_nothing() -> Any:
    members, inst = schema.server_group_members.c, schema.instances.c
    groups = schema.server_groups.c
    return (
        sa.select(
            inst.host, _CONSUMER, members.group_uuid.label('server_group')
        )
        .join(members.group_uuid.table, members.instance_uuid == inst.uuid)
        .where(~sa.exists().where(groups.uuid == members.group_uuid))
        .order_by(members.group_uuid, inst.uuid)
    )


def _lost_members(conn: Connection) -> list[dict[str, Any]]:
    """Return instances in no group, with the groups they were claimed for.

    Groups that do not exist any more are left out.
    """
    members, inst = schema.server_group_members.c, schema.instances.c
    query = (
        sa.select(inst.host, _CONSUMER, inst.placement)
        .where(
            inst.placement.contains('"group":"'),
            ~sa.exists().where(members.instance_uuid == inst.uuid),
        )
        .order_by(inst.uuid)
    )
    stored = {*conn.execute(sa.select(schema.server_groups.c.uuid)).scalars()}
    return [
        {**row, 'server_group': group}
        for row in conn.execute(query).mappings()
        # What a claim was made for is stored with its placement.
        if (group := msgspec.json.decode(row['placement']).get('group'))
        in stored
    ]


def _together() -> Any:
    """Return the query for hosts with too many members of a group.

    An instance that moves counts on both its hosts.
    """
    groups, members = schema.server_groups.c, schema.server_group_members.c
    inst, moves = schema.instances.c, schema.moves.c
    placed = sa.select(members.group_uuid, inst.uuid, inst.host).join(
        inst.uuid.table, inst.uuid == members.instance_uuid
    )
    moving = sa.select(
        members.group_uuid, moves.instance_uuid, moves.host
    ).join(moves.host.table, moves.instance_uuid == members.instance_uuid)
    seats = sa.union(placed, moving).subquery().c
    most = sa.func.coalesce(groups.max_server_per_host, 1)
    number = sa.func.count()
    return (
        sa.select(
            groups.uuid.label('server_group'),
            seats.host,
            number.label('number'),
            most.label('most'),
        )
        .join(seats.host.table, seats.group_uuid == groups.uuid)
        .where(groups.policy == 'anti-affinity')
        .group_by(groups.uuid, groups.max_server_per_host, seats.host)
        .having(number > most)
        .order_by(groups.uuid, seats.host)
    )


def _apart() -> Any:
    """Return the query for groups of several hosts that belong on one.

    An instance that moves counts on the host that it moves to.
    """
    groups, members = schema.server_groups.c, schema.server_group_members.c
    inst, moves = schema.instances.c, schema.moves.c
    host = sa.func.coalesce(moves.host, inst.host)
    number = sa.func.count(host.distinct())
    return (
        sa.select(groups.uuid.label('server_group'), number.label('number'))
        .join(members.group_uuid.table, members.group_uuid == groups.uuid)
        .join(inst.uuid.table, inst.uuid == members.instance_uuid)
        .outerjoin(moves.host.table, moves.instance_uuid == inst.uuid)
        .where(groups.policy == 'affinity')
        .group_by(groups.uuid)
        .having(number > 1)
        .order_by(groups.uuid)
    )


def _promised(amounts: Mapping[tuple[int, str], int] | None) -> str:
    if amounts is None:
        return 'what it was promised is unknown: release it'
    listed = (f'{number} {name}' for (_, name), number in amounts.items())
    return f'it was promised {", ".join(listed)}'


def _records_of_others(stages: Collection[str] | None) -> Any:
    table = schema.stage_records.c
    query = sa.select(table.stage, sa.func.count().label('number'))
    others = sa.false() if stages is None else table.stage.not_in(stages)
    return query.where(others).group_by(table.stage)


def _drop_moves(writer: Writer) -> int:
    """Delete moves of instances without a claim.

    What they hold is without a claim from then on.
    """
    delete = sa.delete(schema.moves).where(_LOST_MOVE)
    return writer.conn.execute(delete).rowcount


def _release_unclaimed(writer: Writer) -> int:
    """Release allocations without a claim, by their consumers.

    They are looked for again once the rows of their instances are locked.
    """
    conn, held = writer.conn, schema.allocations.c
    consumers = {row.consumer_uuid for row in conn.execute(_unclaimed())}
    for part in in_chunks(sorted(consumers)):
        lifecycle.lock(conn, part)
        lost = _unclaimed().where(held.consumer_uuid.in_(part))
        for row in conn.execute(lost).all():
            on_host = held.host_id == row.host_id
            lifecycle.release_allocations(writer, [row.consumer_uuid], on_host)
    return len(consumers)


def _restore_allocations(writer: Writer) -> int:
    """Allocate again what claims promised, once their rows are locked.

    Use is corrected afterwards.
    """
    uuids = {row.consumer_uuid for row, _ in _unallocated(writer.conn)}
    for part in in_chunks(sorted(uuids)):
        lifecycle.lock(writer.conn, part)
        lost: dict[claim_sql.Held, int] = {}
        for row, amounts in _unallocated(writer.conn, part):
            for (provider, name), amount in (amounts or {}).items():
                key = row.consumer_uuid, provider, name
                # Of two claims on a host the larger counts.
                lost[key] = max(amount, lost.get(key, 0))
        if lost:
            rows.insert_packed(
                writer.conn,
                'allocations',
                claim_sql.ALLOCATION,
                [(*key, amount) for key, amount in lost.items()],
                # What is held of an aggregate may be there.
                key=(*claim_sql.HELD,),
            )
            writer.touched.load += sorted({host for _, host, _ in lost})
    return len(uuids)


def _drop_orphaned(writer: Writer) -> int:
    conn, held = writer.conn, schema.allocations
    consumers = {row.consumer_uuid for row in conn.execute(_orphaned())}
    dropped = 0
    for part in in_chunks(sorted(consumers)):
        theirs = held.c.consumer_uuid.in_(part)
        delete = sa.delete(held).where(theirs, _not_offered())
        dropped += conn.execute(delete).rowcount
    return dropped


def _correct_use(writer: Writer) -> int:
    """Correct the use of inventories, each row under its lock.

    It is not lowered on a host with a claim of unknown amounts.

    Claims change use and allocations in one transaction, so each row is read
    again once it is locked.
    """
    conn, offered = writer.conn, schema.inventories
    differing = conn.execute(_differing()).all()
    doubtful = {row.host_id for row, _ in _unallocated(conn)}
    corrected = 0
    for row in differing:
        inventory = (offered.c.host_id == row.host_id) & (
            offered.c.resource_class == row.resource_class
        )
        lock = sa.select(offered.c.used).where(inventory).with_for_update()
        conn.execute(lock)
        locked = conn.execute(_differing().where(inventory)).first()
        if locked is None or (
            locked.used > locked.right_use and row.host_id in doubtful
        ):
            continue
        change = sa.update(offered).where(inventory)
        conn.execute(change.values(used=locked.right_use))
        lifecycle.drop_unused(conn, [(row.host_id, row.resource_class)])
        corrected += 1
        writer.touched.load.append(row.host_id)
    return corrected
