"""Claims and releases of all kinds, which PostgreSQL makes in one round trip.

They have to do what the same ones do statement by statement.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.model import documents
from scheduler_service.model.inventory import provider_of
from scheduler_service.store import claims, schema
from scheduler_service.store.claims import lifecycle, outcomes
from scheduler_service.store.claims.pg_claims import PendingRelease
from scheduler_service.store.connection import ChangeRecord, Store, Writer
from scheduler_service.store.reading import change_feed, loading
from scheduler_service.store.writing import inventory_import, server_groups
from tests.support.stores import sent
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.db

HOSTS = ('compute-1', 'compute-2', 'compute-3', 'compute-4')
FALLBACK = {'VCPU': 16.0, 'MEMORY_MB': 1.0, 'DISK_GB': 1.0}
STRICT = ('affinity', 'anti-affinity')
# What an aggregate of all hosts offers.
SHARED, OFFER = 'CUSTOM_A', {'total': 12}
POLICIES = (*STRICT, 'soft-affinity', 'soft-anti-affinity')
TABLES = (
    schema.instances,
    schema.allocations,
    schema.inventories,
    schema.server_group_members,
    schema.moves,
    schema.stage_records,
    schema.outcomes,
    schema.releases,
)


class RolledBack(Exception):
    """Raised so that a transaction leaves nothing behind."""


@pytest.fixture
def store(make_store: Any) -> Store:
    found: Store = make_store('postgresql')
    return found


@pytest.fixture
def conn(store: Store) -> Iterator[Connection]:
    with store.hold() as held:
        yield held.execution_options(isolation_level='AUTOCOMMIT')


def import_cloud(
    store: Store,
    groups: Sequence[dict[str, Any]] = (),
    reported: Sequence[str] = (),
) -> None:
    """Import four hosts with room for 16 GB each, and server groups.

    :param reported: instances, one on each host
    """
    document = documents.inventory(
        {
            'hosts': [
                {'host': name, 'vcpus': 8, 'memory_mb': 16384, 'local_gb': 99}
                for name in HOSTS
            ],
            'aggregates': [
                {'id': 1, 'hosts': [*HOSTS], 'resources': {SHARED: OFFER}},
            ],
            'instances': [
                {'uuid': uuid_, 'host': host}
                for uuid_, host in zip(reported, HOSTS, strict=False)
            ],
            'server_groups': list(groups),
        }
    )
    store.write(lambda writer: inventory_import.Importer(writer).run(document))


def claim(at: int, group: str | None = None, **more: Any) -> claims.Claim:
    """Return a claim of 1 GB on a host; host ids count from 1."""
    values = {
        'consumer': str(uuid.uuid4()),
        'host_id': at + 1,
        'host': HOSTS[at],
        'node': HOSTS[at],
        'amounts': {'MEMORY_MB': 1024, 'VCPU': 1},
        'ratios': {},
        'project_id': 'p',
        'request_id': 'req-1',
        'document': '{}',
        'placement': '{}',
        'group': group,
    }
    return claims.Claim(**{**values, **more})


def send(store: Store, conn: Connection, *batch: claims.Claim) -> bool:
    """Claim; return whether that succeeded."""
    prepared = claims.ClaimBatch(store, batch, FALLBACK, STRICT)
    assert prepared.statements
    try:
        sent(prepared, conn).wait()
    except claims.ClaimLost:
        return False
    return True


def rows_of(conn: Connection) -> list[list[tuple[Any, ...]]]:
    """Return all rows that claims and releases write, without the times."""
    return [
        sorted(
            repr([v for name, v in row._mapping.items() if name[-3:] != '_at'])
            for row in conn.execute(sa.select(table))
        )
        for table in TABLES
    ]


def stepwise(
    store: Store, make: Callable[[Writer], object]
) -> tuple[Any, ChangeRecord] | None:
    """Return what is written statement by statement, and roll it back.

    None: the claims are lost.
    """
    found: list[Any] = []

    def work(writer: Writer) -> None:
        make(writer)
        found.extend((rows_of(writer.conn), writer.touched))
        raise RolledBack

    try:
        store.write(work)
    except claims.ClaimLost:
        return None
    except RolledBack:
        return found[0], found[1]
    raise AssertionError('the transaction was not rolled back')


def changed_keys(record: ChangeRecord) -> dict[str, Any]:
    """Return what a change names, in an order that is the same each time."""
    return {
        name: sorted(set(value)) if isinstance(value, list) else value
        for name, value in msgspec.structs.asdict(record).items()
    }


def random_cloud(store: Store, dice: random.Random) -> list[str]:
    """Fill hosts with members of groups; return the groups' uuids."""
    groups = [
        {
            'uuid': str(uuid.UUID(int=dice.getrandbits(128), version=4)),
            'policy': dice.choice(POLICIES),
            'rules': dice.choice(({}, {'max_server_per_host': 2})),
        }
        for _ in range(4)
    ]
    import_cloud(store, groups, [str(uuid.uuid4()) for _ in HOSTS])
    uuids = [str(group['uuid']) for group in groups]
    for _ in range(dice.randrange(8)):
        add_member(store, dice, dice.choice(uuids))
    return uuids


def add_member(store: Store, dice: random.Random, group: str) -> None:
    """Add a member that is placed, moves or is nowhere."""
    kind = dice.choice(('placed', 'moves', 'nowhere'))
    one, other = dice.sample(range(len(HOSTS)), 2)
    placed = claim(one)
    moved = claim(other, consumer=placed.consumer, is_present=True, move=True)

    if kind != 'nowhere':
        store.write(claims.ClaimBatch(store, [placed], FALLBACK).make)
    if kind == 'moves':
        store.write(claims.ClaimBatch(store, [moved], FALLBACK).make)

    def work(writer: Any) -> None:
        writer.conn.execute(
            schema.server_group_members.insert(),
            {'group_uuid': group, 'instance_uuid': placed.consumer},
        )

    store.write(work)


def random_batch(
    store: Store, dice: random.Random, groups: Sequence[str]
) -> list[claims.Claim]:
    """Return claims, some of members, of nonmembers and of no group.

    Some are of instances that are stored; some are lost to a release, an
    outcome or an earlier claim that is being undone.
    """
    with store.reading() as conn:
        nowhere = [
            (row.group_uuid, row.instance_uuid)
            for row in conn.execute(sa.select(schema.server_group_members))
        ]
        found = conn.execute(sa.select(schema.instances)).all()
    stored = dice.sample(found, len(found))
    batch = []
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(HOSTS))
        chance = dice.random()
        if chance < 0.15:
            batch.append(claim(at))
        elif chance < 0.2:
            batch.append(claim(at, group=str(uuid.uuid4())))
        elif chance < 0.35 and nowhere:
            group, member = nowhere.pop()
            batch.append(claim(at, group, consumer=member))
        elif chance < 0.38:
            batch.append(
                claim(
                    at,
                    dice.choice(groups),
                    group_owner=dice.choice((None, 'q')),
                )
            )
        elif chance < 0.7 and stored:
            batch.append(
                claim(
                    at,
                    dice.choice((None, None, dice.choice(groups))),
                    consumer=stored[-1].uuid,
                    is_present=True,
                    move=stored.pop().state != 'reported' or chance < 0.5,
                    may_stay=dice.random() < 0.5,
                    amounts={'MEMORY_MB': dice.choice((512, 2048)), 'VCPU': 1},
                    placement='{"amounts": {}}',
                )
            )
        else:
            batch.append(claim(at, dice.choice(groups)))
        if dice.random() < 0.3:
            amounts = {**batch[-1].amounts, SHARED: dice.choice((0, 1, 2))}
            shared = {SHARED: provider_of(1)}
            promised = {'amounts': amounts, 'shared': shared}
            batch[-1] = msgspec.structs.replace(
                batch[-1],
                amounts=amounts,
                shared=shared,
                placement=msgspec.json.encode(promised).decode(),
            )
        if dice.random() < 0.15:
            lost = dice.choice((None, None, 'key', 'release', 'undone'))
            batch.append(prevented(store, batch.pop(), lost))
    return batch


def prevented(
    store: Store, wanted: claims.Claim, how: str | None
) -> claims.Claim:
    """Return a claim with the record of a stage, lost for a reason if any."""
    key = str(uuid.uuid4())
    made = msgspec.structs.replace(
        wanted, key=key, records=[('complete', '{}')]
    )

    def work(writer: Writer) -> None:
        if how == 'key':
            refused = outcomes.RecordedOutcome(key, outcomes.REFUSED, '{}')
            outcomes.add(writer.conn, [refused])
        elif how == 'release':
            asked = {wanted.consumer: outcomes.ReleaseRequest(project_id='p')}
            outcomes.record_releases(writer, asked, outcomes.ALL)
        elif how == 'undone':
            # The instance may have such a record of a batch before.
            host_id = 99 + uuid.uuid4().int % 2**32
            writer.conn.execute(
                schema.stage_records.insert(),
                {'stage': 'complete', 'instance_uuid': wanted.consumer,
                 'host_id': host_id, 'document': '{}', 'undone_until': 1e12},
            )  # fmt: skip

    store.write(work)
    return made


@pytest.mark.parametrize('seed', range(4))
def test_one_round_trip_does_what_single_statements_do(store, conn, seed):
    dice = random.Random(seed)
    groups = random_cloud(store, dice)
    verdicts = Counter[bool]()
    for _ in range(30):
        batch = random_batch(store, dice, groups)
        made = claims.ClaimBatch(store, batch, FALLBACK, STRICT).make
        expected = stepwise(store, made)
        before = rows_of(conn)
        revision, _ = loading.newest_change(conn)
        actual = send(store, conn, *batch)
        verdicts[actual] += 1
        assert actual == (expected is not None)
        if expected is None:
            assert rows_of(conn) == before
            continue
        rows, touched = expected
        assert rows_of(conn) == rows
        _, change = change_feed.since(conn, revision)
        assert change.record() == touched
    assert min(verdicts[True], verdicts[False]) > 0


def random_release(
    conn: Connection, dice: random.Random
) -> dict[str, outcomes.ReleaseRequest]:
    """Return releases of instances that are stored, and of one that is not."""
    found = conn.execute(sa.select(schema.instances.c.uuid)).scalars().all()
    some = dice.sample(found, min(len(found), dice.randrange(4)))
    return {
        one: outcomes.ReleaseRequest(project_id=dice.choice((None, 'p', 'q')))
        for one in (*some, str(uuid.uuid4()))
    }


@pytest.mark.parametrize('seed', range(2))
def test_releases_in_one_round_trip_do_what_single_statements_do(
    store, conn, seed
):
    dice = random.Random(seed)
    groups = random_cloud(store, dice)
    gone = Counter[str]()
    for _ in range(30):
        for one in random_batch(store, dice, groups):
            key, amounts = str(uuid.uuid4()), dice.choice(({}, one.amounts))
            send(
                store,
                conn,
                msgspec.structs.replace(one, key=key, amounts=amounts),
            )
        asked = random_release(conn, dice)
        written = stepwise(store, lambda w, r=asked: lifecycle.cancel(w, r))
        assert written is not None
        revision, _ = loading.newest_change(conn)
        pending = PendingRelease(
            store, conn, asked, dict.fromkeys(asked, None), []
        )
        pending.finish()
        released = pending.wait()
        assert released is not None
        rows, touched = written
        assert rows_of(conn) == rows
        _, change = change_feed.since(conn, revision)
        found = changed_keys(change.record())
        assert found == {**changed_keys(touched), 'released': sorted(asked)}
        gone.update(name for name, keys in found.items() if keys)
    assert {'instances', 'instances_gone', 'groups', 'load'} <= gone.keys()


def test_a_group_that_does_not_exist_gets_no_members(store, conn):
    import_cloud(store)
    assert send(store, conn, claim(0, str(uuid.uuid4())), claim(0))
    members = sa.select(schema.server_group_members)
    assert conn.execute(members).all() == []
    _, changed = change_feed.since(conn, 1)
    change = changed.record()
    assert change.groups == []
    assert len(change.instances) == 2


def test_a_lost_claim_leaves_the_connection_usable(store, conn):
    group = str(uuid.uuid4())
    import_cloud(store, [{'uuid': group}])
    for _ in range(2):
        assert send(store, conn, claim(0, group))
        assert not send(store, conn, claim(0, group))
        # Prepared statements may be dropped, here by a connection pooler.
        conn.exec_driver_sql('DEALLOCATE ALL')
        assert send(store, conn, claim(1, group))
        assert not send(store, conn, claim(1, group))
        conn.execute(sa.delete(schema.server_group_members))


def test_a_claim_waits_for_the_group_and_sees_what_was_committed(store, conn):
    """The claim's statement starts after the lock is taken."""
    group = str(uuid.uuid4())
    import_cloud(store, [{'uuid': group}])
    batch = claims.ClaimBatch(store, [claim(0, group)], FALLBACK, STRICT)
    with store.hold() as rival:
        transaction = rival.begin()
        rival.execute(sa.select(schema.server_groups.c.uuid).with_for_update())
        pending = sent(batch, conn)
        waiter = threading.Thread(target=pending.finish)
        waiter.start()
        waiter.join(0.3)
        assert waiter.is_alive()
        placed = claim(0, group)
        rival.execute(
            schema.instances.insert(),
            {'uuid': placed.consumer, 'host': placed.host, 'state': 'claimed',
             'node': placed.node, 'document': '{}', 'created_at': 0.0},
        )  # fmt: skip
        rival.execute(
            schema.server_group_members.insert(),
            {'group_uuid': group, 'instance_uuid': placed.consumer},
        )
        transaction.commit()
    waiter.join()
    with pytest.raises(claims.ClaimLost):
        pending.wait()
    assert send(store, conn, claim(1, group))


def test_claimers_that_race_never_break_anti_affinity(store):
    group = str(uuid.uuid4())
    import_cloud(store, [{'uuid': group, 'rules': {'max_server_per_host': 2}}])
    won = Counter[int]()

    def work(number: int) -> None:
        dice = random.Random(number)
        with store.hold() as held:
            conn = held.execution_options(isolation_level='AUTOCOMMIT')
            for _ in range(15):
                at = dice.randrange(len(HOSTS))
                others = [claim(dice.randrange(len(HOSTS))) for _ in range(2)]
                won[number] += send(store, conn, claim(at, group), *others)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    inst, members = schema.instances, schema.server_group_members
    with store.reading() as conn:
        hosts = conn.execute(
            sa.select(inst.c.host).join(
                members, members.c.instance_uuid == inst.c.uuid
            )
        ).scalars()
        assert Counter(hosts) == dict.fromkeys(HOSTS, 2)
    assert won.total() == 2 * len(HOSTS)


def test_a_connection_that_is_lost_on_the_way_is_reported(store, conn):
    group = str(uuid.uuid4())
    import_cloud(store, [{'uuid': group}])
    batch = claims.ClaimBatch(store, [claim(0, group)], FALLBACK, STRICT)
    pid = conn.exec_driver_sql('SELECT pg_backend_pid()').scalar_one()
    with store.hold() as rival:
        transaction = rival.begin()
        rival.execute(sa.select(schema.server_groups.c.uuid).with_for_update())
        pending = sent(batch, conn)
        time.sleep(0.1)
        rival.exec_driver_sql(f'SELECT pg_terminate_backend({pid})')
        with pytest.raises(errors.StoreUnavailable):
            pending.wait()
        transaction.rollback()
    conn.invalidate()


@pytest.mark.parametrize('kind', ['postgresql', 'mariadb'])
def test_no_membership_is_left_of_a_group_that_goes_while_it_is_joined(
    make_store, kind
):
    store = make_store(kind)
    group = str(uuid.uuid4())
    import_cloud(store, [{'uuid': group}])
    gone = threading.Event()

    def remove() -> None:
        store.write(lambda writer: server_groups.delete_named(writer, group))
        gone.set()

    removing = threading.Thread(target=remove)

    def join(writer: Writer) -> None:
        claims.ClaimBatch(store, [claim(0, group)], FALLBACK).make(writer)
        removing.start()
        # It waits for the claim, which has the group's row.
        assert not gone.wait(0.5)

    store.write(join)
    removing.join(LIMIT_S)
    assert gone.is_set()
    with store.reading() as conn:
        left = conn.execute(sa.select(schema.server_group_members)).all()
    assert left == []
