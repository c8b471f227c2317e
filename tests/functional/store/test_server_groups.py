"""Server groups while their members are claimed, moved and released."""

from __future__ import annotations

import re
import threading
import uuid
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service.columns.table import Snapshot
from scheduler_service.model import ServerGroup
from scheduler_service.store import claims, schema
from scheduler_service.store.claims import lifecycle
from scheduler_service.store.connection import REVISION, Store, lock_counter
from scheduler_service.store.writing import server_groups
from tests.support.databases import listens, waiting
from tests.support.stores import (
    DEFAULT_RATIOS,
    STRICT,
    claim_on,
    import_inventory,
    load_snapshot,
    write_claims,
)
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.db

GROUP = 'aaaaaaaa-0000-4000-8000-000000000001'
# SQLite has one writer at a time.
SHARED = pytest.mark.parametrize('kind', ['postgresql', 'mariadb'])
STEPWISE = pytest.mark.parametrize(
    'stepwise',
    [False, True],
    ids=['in one round trip', 'statement by statement'],
)


def import_cloud(store: Store, *groups: dict[str, Any]) -> Snapshot:
    """Import three hosts of 4,096 MB, and server groups."""
    import_inventory(
        store,
        {
            'hosts': [
                {'host': f'compute-{n}', 'vcpus': 8, 'memory_mb': 4096,
                 'local_gb': 100, 'ram_allocation_ratio': 1.0}
                for n in (1, 2, 3)
            ],
            'server_groups': list(groups or ({'uuid': GROUP},)),
        },
    )  # fmt: skip
    return load_snapshot(store)


def write(store: Store, *wanted: claims.Claim, stepwise: bool = False) -> None:
    """Claim in one round trip where that is possible, unless *stepwise*."""
    if stepwise:
        batch = claims.ClaimBatch(store, wanted, DEFAULT_RATIOS, STRICT)
        store.write(batch.make)
    else:
        write_claims(store, *wanted, policies=STRICT)


def members(store: Store, group: str = GROUP) -> list[str]:
    return load_snapshot(store).hosts.groups[group].members


def again(snapshot: Snapshot, released: claims.Claim) -> claims.Claim:
    """Return a claim of the same member on the second host."""
    return claim_on(snapshot, 1, consumer=released.consumer, group=GROUP)


def assert_is_member(store: Store, snapshot: Snapshot, uuid: str) -> None:
    """Check a member on the second host by where others may be claimed."""
    assert members(store) == [uuid]
    with pytest.raises(claims.ClaimLost):
        write(store, claim_on(snapshot, 1, group=GROUP))
    write(store, claim_on(snapshot, 0, group=GROUP))


@SHARED
@STEPWISE
def test_member_that_is_claimed_before_its_release_ends_stays_one(
    make_store, kind, stepwise
):
    """The claim sees the membership that the release is about to delete."""
    store = make_store(kind)
    snapshot = import_cloud(store)
    first = claim_on(snapshot, 0, group=GROUP)
    write(store, first)
    claiming = threading.Thread(
        target=write,
        args=(store, again(snapshot, first)),
        kwargs={'stepwise': stepwise},
    )
    releasing = threading.get_ident()
    repeated: list[str] = []
    store.on_retry = repeated.append

    @listens(store, 'after_cursor_execute')
    def look(conn, cursor, statement, *_):
        mine = threading.get_ident() == releasing
        if mine and re.search('DELETE.* instances ', statement):
            claiming.start()
            claiming.join(0.3)
            assert claiming.is_alive()

    store.write(lambda w: lifecycle.release(w, [first.consumer]))
    claiming.join(LIMIT_S)
    assert not claiming.is_alive()
    # Each of the two takes the counter last.
    assert repeated == []
    assert_is_member(store, snapshot, first.consumer)


@SHARED
def test_member_that_is_released_before_it_is_inserted_again_stays_one(
    make_store, kind
):
    store = make_store(kind)
    snapshot = import_cloud(store)
    first = claim_on(snapshot, 0, group=GROUP)
    write(store, first)
    claiming = threading.get_ident()
    left = [first.consumer]

    def release() -> None:
        gone = [left.pop()]
        store.write(lambda w: lifecycle.release(w, gone))

    @listens(store, 'before_cursor_execute')
    def look(conn, cursor, statement, *_):
        mine = threading.get_ident() == claiming
        if left and mine and 'INSERT INTO instances' in statement:
            releasing = threading.Thread(target=release)
            releasing.start()
            releasing.join(LIMIT_S)

    write(store, again(snapshot, first), stepwise=True)
    assert_is_member(store, snapshot, first.consumer)


def lose(
    store: Store,
    *wanted: claims.Claim,
    group: str = GROUP,
    stepwise: bool = False,
) -> None:
    """Check that claims are lost, and say that it is for a group's policy."""
    with pytest.raises(claims.ClaimLost, match=f'policy.*{group}'):
        write(store, *wanted, stepwise=stepwise)


def report(
    store: Store, groups: dict[str, list[str]], **rules: Any
) -> Snapshot:
    """Import groups of members that hosts reported.

    :param groups: uuid -> the host of each member, which is its uuid
    """
    hosts = [host for members in groups.values() for host in members]
    snapshot = import_cloud(
        store,
        *(
            {'uuid': group, 'members': list(map(named, members)), **rules}
            for group, members in groups.items()
        ),
    )
    import_inventory(
        store,
        {'instances': [{'uuid': named(h), 'host': h[:9]} for h in set(hosts)]},
    )
    return snapshot


def named(text: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, text))


@pytest.mark.parametrize('move', [True, False])
@pytest.mark.parametrize('group', [None, GROUP])
def test_stored_instance_is_claimed_by_the_policies_of_all_its_groups(
    store, move, group
):
    """Whether the request names a group or not."""
    other = str(uuid.uuid4())
    snapshot = report(
        store,
        {
            GROUP: ['compute-1', 'compute-2'],
            other: ['compute-1', 'compute-3 too'],
        },
    )
    how = {
        'consumer': named('compute-1'),
        'is_present': True,
        'move': move,
        'group': group,
    }
    lose(store, claim_on(snapshot, 1, **how))
    lose(store, claim_on(snapshot, 2, **how), group=other)
    free = claim_on(snapshot, 1, consumer=named('compute-2'), move=True)
    with pytest.raises(claims.ClaimLost):
        # Not where it is already.
        write(store, free)
    write(store, claim_on(snapshot, 0, **how, may_stay=True))


def test_stored_instance_does_not_join_another_group(store):
    other = str(uuid.uuid4())
    snapshot = report(store, {GROUP: ['compute-1'], other: []})
    how = {'consumer': named('compute-1'), 'is_present': True}
    with pytest.raises(claims.ClaimLost):
        write(store, claim_on(snapshot, 1, group=other, move=True, **how))
    assert members(store, other) == []
    write(store, claim_on(snapshot, 1, group=GROUP, move=True, **how))


@SHARED
def test_move_waits_for_a_claim_with_which_its_instance_joins_a_group(
    make_store, kind
):
    store = make_store(kind)
    snapshot = report(store, {GROUP: ['compute-2']})
    import_inventory(
        store, {'instances': [{'uuid': named('x'), 'host': 'compute-1'}]}
    )
    how = {'consumer': named('x'), 'is_present': True}
    joining = threading.Thread(
        target=write, args=(store, claim_on(snapshot, 2, **how, group=GROUP))
    )
    moving = threading.Thread(
        target=lose, args=(store, claim_on(snapshot, 1, **how, move=True))
    )
    with store.engine.begin() as holder:
        lock_counter(holder, REVISION)
        for count, thread in enumerate((joining, moving), 1):
            thread.start()
            wait_until(lambda n=count: waiting(store) >= n)
    for thread in (joining, moving):
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert load_snapshot(store).hosts.instances.get(named('x')).hosts == (
        'compute-3',
    )


@SHARED
@pytest.mark.parametrize('broken', [True, False])
def test_move_keeps_the_policy_of_a_group_that_it_is_put_in_meanwhile(
    make_store, kind, broken
):
    """It waits for the room on its new host at that time."""
    store = make_store(kind)
    snapshot = report(store, {GROUP: ['compute-2'] if broken else []})
    import_inventory(
        store, {'instances': [{'uuid': named('x'), 'host': 'compute-1'}]}
    )
    move = claim_on(
        snapshot, 1, consumer=named('x'), is_present=True, move=True
    )
    moving = threading.Thread(
        target=lose if broken else write, args=(store, move)
    )
    with store.engine.begin() as holder:
        holder.execute(sa.select(schema.inventories).with_for_update())
        moving.start()
        wait_until(lambda: waiting(store) >= 1)
        group = ServerGroup(uuid=GROUP, members=[named('x')])
        store.write(lambda writer: server_groups.put(writer, group))
    moving.join(LIMIT_S)
    assert not moving.is_alive()
    lose(store, claim_on(snapshot, 1, group=GROUP))
    write(store, claim_on(snapshot, 2, group=GROUP))


@STEPWISE
def test_group_that_is_broken_elsewhere_gets_members(store, stepwise):
    snapshot = report(store, {GROUP: ['compute-1', 'compute-1 too']})

    def claim(row: int) -> claims.Claim:
        return claim_on(snapshot, row, group=GROUP)

    lose(store, claim(0), stepwise=stepwise)
    lose(store, claim(0), claim(1), stepwise=stepwise)
    lose(store, claim(1), claim(1), stepwise=stepwise)
    write(store, claim(1), claim(2), stepwise=stepwise)
    lose(store, claim(1), stepwise=stepwise)


@STEPWISE
def test_group_over_several_hosts_gets_members_on_these(store, stepwise):
    snapshot = report(
        store, {GROUP: ['compute-1', 'compute-2']}, policy='affinity'
    )

    def claim(row: int, **how: Any) -> claims.Claim:
        return claim_on(snapshot, row, group=GROUP, **how)

    lose(store, claim(2), stepwise=stepwise)
    lose(store, claim(0), claim(2), stepwise=stepwise)
    write(store, claim(0), claim(1), stepwise=stepwise)
    write(store, claim(0), stepwise=stepwise)
    moved = {'consumer': named('compute-1'), 'is_present': True, 'move': True}
    lose(store, claim(2, **moved), stepwise=stepwise)
    write(store, claim(1, **moved), stepwise=stepwise)


@STEPWISE
def test_first_members_of_an_affinity_group_are_on_one_host(store, stepwise):
    snapshot = report(store, {GROUP: []}, policy='affinity')

    def claim(row: int) -> claims.Claim:
        return claim_on(snapshot, row, group=GROUP)

    lose(store, claim(0), claim(1), stepwise=stepwise)
    write(store, claim(1), claim(1), stepwise=stepwise)
    lose(store, claim(0), stepwise=stepwise)


@STEPWISE
def test_nobody_joins_an_affinity_group_whose_only_member_moves(
    store, stepwise
):
    """Where its move will end is not known, and the two are to be together."""
    snapshot = report(store, {GROUP: []}, policy='affinity')
    first = claim_on(snapshot, 0, group=GROUP)
    write(store, first, stepwise=stepwise)
    moved = {'consumer': first.consumer, 'is_present': True, 'move': True}
    move = claim_on(snapshot, 1, group=GROUP, **moved)
    lose(store, move, claim_on(snapshot, 0, group=GROUP), stepwise=stepwise)
    write(store, move, stepwise=stepwise)
    for row in (0, 1, 2):
        lose(store, claim_on(snapshot, row, group=GROUP), stepwise=stepwise)
    arrived = dict.fromkeys([first.consumer])
    store.write(lambda writer: lifecycle.confirm(writer, arrived))
    lose(store, claim_on(snapshot, 0, group=GROUP), stepwise=stepwise)
    write(store, claim_on(snapshot, 1, group=GROUP), stepwise=stepwise)
