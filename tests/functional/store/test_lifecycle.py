"""Claims that are confirmed, moved, released and expire."""

import json
import uuid

import msgspec
import pytest

from scheduler_service.model import Instance
from scheduler_service.store import claims
from scheduler_service.store.claims import (
    claim_queries,
    lifecycle,
    outcomes,
    released_claims,
)
from scheduler_service.store.claims.outcomes import ReleaseRequest
from scheduler_service.store.reading import change_feed
from scheduler_service.store.writing import instances as instance_rows
from tests.support.stores import (
    STRICT,
    assert_same_snapshot,
    audit_findings,
    claim_on,
    claim_state,
    import_inventory,
    import_two_hosts,
    load_snapshot,
    move_of,
    used_memory,
    write_claims,
)

pytestmark = pytest.mark.db

GROUP = 'aaaaaaaa-0000-4000-8000-000000000002'


def test_claim_is_confirmed_when_its_own_host_reports_it(store, claim):
    def confirm(host):
        seen = {claim.consumer: host}
        return store.write(lambda w: lifecycle.confirm(w, seen))

    assert confirm('compute-2') == []
    assert confirm('compute-1') == [claim.consumer]
    assert confirm('compute-1') == []
    assert claim_state(store, claim.consumer) == 'confirmed'


def test_other_daemons_are_told_of_what_is_confirmed(store, snapshot, claim):
    write_claims(store, claim_on(snapshot, 0))
    seen = {claim.consumer: 'compute-1'}

    def touched(writer):
        lifecycle.confirm(writer, seen)
        return [*writer.touched.instances]

    assert store.write(touched) == [claim.consumer]
    # Again there is nothing to tell.
    assert store.write(touched) == []


@pytest.mark.parametrize('amounts', [{}, {'MEMORY_MB': 64}])
def test_other_daemons_are_told_of_what_is_released(store, snapshot, amounts):
    """The host has an instance less, also where it used nothing."""
    one = claim_on(snapshot, 1, amounts=amounts)
    write_claims(store, one)
    told: list[str] = []
    before = load_snapshot(store)

    def touched(writer):
        lifecycle.cancel(writer, {one.consumer: ReleaseRequest()})
        return {*writer.touched.load}

    assert store.write(touched) == {one.host_id}
    with store.reading() as conn:
        after = change_feed.refresh(conn, before, {}, told.extend)
    assert told == [one.consumer]
    assert_same_snapshot(after, load_snapshot(store))


def test_reported_instance_stays_on_its_host_while_it_moves(store, snapshot):
    """Where it is not known by a claim yet, both hosts count it."""
    reported = str(uuid.uuid4())
    here = Instance(uuid=reported, host='compute-1')
    store.write(lambda w: instance_rows.report(w, [here]))
    write_claims(store, move_of(snapshot, reported))
    placed = load_snapshot(store).hosts.instances.get(reported)
    assert placed is not None
    assert (placed.host, placed.bound_for) == ('compute-1', 'compute-2')


def test_a_move_holds_both_places_until_it_is_confirmed(
    store, snapshot, claim, moving
):
    assert used_memory(store) == [1024, 1024]
    placed = load_snapshot(store).hosts.instances.get(claim.consumer)
    assert placed is not None
    assert (placed.host, placed.bound_for) == ('compute-1', 'compute-2')
    with pytest.raises(claims.ClaimLost):
        write_claims(store, moving)

    def touched(writer):
        lifecycle.confirm(writer, {claim.consumer: 'compute-2'})
        return {*writer.touched.load}

    # Daemons are told of both hosts.
    assert store.write(touched) == set(snapshot.hosts.ids.tolist())
    assert used_memory(store) == [0, 1024]
    with store.reading() as conn:
        shown = claim_queries.show(conn, claim.consumer)
    assert (shown['state'], shown['host']) == ('confirmed', 'compute-2')
    assert audit_findings(store) == []


def test_instance_stays_on_its_host_when_the_move_is_dropped(store, moving):
    drop = [moving.consumer]
    assert store.write(lambda w: lifecycle.drop_moves(w, drop)) == drop
    assert store.write(lambda w: lifecycle.drop_moves(w, drop)) == []
    assert used_memory(store) == [1024, 0]


@pytest.fixture
def resize(store, snapshot):
    """Give a function that claims other memory on the host of 512 MB.

    The claim of these is confirmed.
    """

    def claimed(amount, **more):
        return claim_on(
            snapshot,
            0,
            amounts={'MEMORY_MB': amount},
            placement=json.dumps({'amounts': {'MEMORY_MB': amount}, **more}),
            document=json.dumps({'flavor': {'flavorid': 'small'}}),
            consumer=GROUP,
        )

    write_claims(store, claimed(512))
    store.write(lambda w: lifecycle.confirm(w, {GROUP: 'compute-1'}))

    def again(amount, **how):
        made = msgspec.structs.replace(
            claimed(amount, resized_to='large'),
            is_present=True,
            move=True,
            **how,
        )
        before = used_memory(store)
        with pytest.raises(claims.ClaimLost):
            write_claims(store, made)
        assert used_memory(store) == before
        write_claims(store, msgspec.structs.replace(made, may_stay=True))
        return made

    return again


@pytest.fixture
def staying(store, resize):
    """A confirmed claim of 512 MB, and one of 1,024 MB on the same host."""
    made = resize(1024)
    assert audit_findings(store) == []
    return made


def test_the_larger_size_counts_while_an_instance_is_resized(store, resize):
    resize(1024)
    assert used_memory(store) == [1024, 0]


def test_a_smaller_size_always_fits_on_its_own_host(store, snapshot, resize):
    write_claims(store, claim_on(snapshot, 0, amounts={'MEMORY_MB': 3584}))
    import_inventory(
        store,
        {'hosts': [{'host': 'compute-1', 'vcpus': 8, 'memory_mb': 2048}]},
    )
    one = resize(256)
    assert used_memory(store) == [4096, 0]
    store.write(lambda w: lifecycle.confirm(w, {one.consumer: None}))
    assert used_memory(store) == [3840, 0]


def test_a_size_that_is_larger_by_too_much_does_not_fit(
    store, snapshot, resize
):
    write_claims(store, claim_on(snapshot, 0, amounts={'MEMORY_MB': 3072}))
    with pytest.raises(claims.ClaimLost):
        resize(1025)
    assert used_memory(store) == [3584, 0]


def test_both_sizes_count_where_another_service_has_them(store, resize):
    """It has the allocations of both, and adds them up."""
    resize(1024, records=[('complete', '{}')])
    assert used_memory(store) == [1536, 0]


@pytest.fixture
def report(store, staying):
    """Give a function that has its host report an instance; returns use."""

    def send(flavorid=None, task=None):
        seen = Instance(
            uuid=staying.consumer,
            host='compute-1',
            flavor={'flavorid': flavorid} if flavorid else {},
            task_state=task,
        )
        store.write(lambda w: instance_rows.report(w, [seen]))
        assert audit_findings(store) == []
        return used_memory(store)[0]

    return send


def test_an_instance_that_moves_within_its_host_has_its_new_place_in_the_end(
    store, staying, report
):
    uuid = staying.consumer
    placed = load_snapshot(store).hosts.instances.get(uuid)
    assert placed.hosts == ('compute-1',)
    # It does not say that the instance has moved.
    store.write(lambda w: lifecycle.confirm(w, {uuid: 'compute-1'}))
    assert report() == 1024
    assert report('small', 'resize_prep') == 1024
    assert report('large', 'resize_finish') == 1024
    assert claim_state(store, uuid) == 'confirmed'


def test_a_resize_within_a_host_is_seen_to_be_reverted(store, staying, report):
    """From then on the report of the host includes the instance."""
    for flavorid in 'large', 'large', None:
        assert report(flavorid) == 1024
    assert report('small', 'resize_reverting') == 0
    assert claim_state(store, staying.consumer) is None
    assert report('small') == 0
    # It may be resized again.
    write_claims(store, msgspec.structs.replace(staying, may_stay=True))
    assert report('small', 'resize_prep') == 1024
    assert report('large') == 1024


def test_a_resize_within_a_host_is_seen_to_have_failed(
    store, staying, report, monkeypatch
):
    # What was read before the claim says nothing.
    assert report('small') == 1024
    monkeypatch.setattr(lifecycle, '_READ_S', -60.0)
    assert report('small', 'resize_prep') == 1024
    assert report() == 1024
    assert report('small') == 512
    assert claim_state(store, staying.consumer) == 'confirmed'


def test_an_instance_stays_when_its_host_removes_what_it_was_resized_from(
    store, staying, report
):
    """Hosts say so when a resize is confirmed."""

    def leave(**how):
        one = [staying.consumer]
        store.write(
            lambda w: lifecycle.remove_from_host(w, 'compute-1', one, **how)
        )
        assert audit_findings(store) == []
        return used_memory(store)[0]

    # Each daemon is told.
    for _ in range(2):
        assert leave(resized_stay=True) == 1024
    assert report('large') == 1024
    assert leave(resized_stay=True) == 1024
    assert claim_state(store, staying.consumer) == 'confirmed'
    assert leave() == 0


@pytest.mark.parametrize(
    ('end', 'used'),
    [
        (lambda w, one: lifecycle.confirm(w, dict.fromkeys(one)), 1024),
        (lambda w, one: lifecycle.drop_moves(w, one), 512),
        (lambda w, one: lifecycle.release(w, one), 0),
        (lambda w, one: lifecycle.remove_from_host(w, 'compute-1', one), 0),
    ],
    ids=['confirmed', 'dropped', 'released', 'gone'],
)
def test_a_move_within_a_host_ends_with_one_claim_or_none(
    store, staying, end, used
):
    store.write(lambda w: end(w, [staying.consumer]))
    assert used_memory(store) == [used, 0]
    assert audit_findings(store) == []


def test_release_gives_back_both_places_when_it_was_moving(store, moving):
    store.write(lambda w: lifecycle.release(w, [moving.consumer]))
    assert used_memory(store) == [0, 0]
    assert load_snapshot(store).hosts.instances.get(moving.consumer) is None
    assert audit_findings(store) == []


def test_placement_of_a_move_is_kept_when_its_host_reports_it_gone(
    store, snapshot, claim
):
    """The message of the move may come again, and has its answer then."""
    one = claim.consumer
    write_claims(store, move_of(snapshot, one, key='move', placement='{}'))
    assert store.write(
        lambda w: lifecycle.remove_from_host(w, 'compute-2', [one])
    ) == [one]
    with store.reading() as conn:
        (kept,) = outcomes.find(conn, 'move')
    assert (kept.kind, kept.document) == (outcomes.PLACEMENT, '{}')


def test_old_host_is_freed_when_it_reports_the_instance_gone(store, moving):
    one = moving.consumer
    assert store.write(
        lambda w: lifecycle.remove_from_host(w, 'compute-1', [one])
    )
    assert used_memory(store) == [0, 1024]
    placed = load_snapshot(store).hosts.instances.get(one)
    assert placed is not None
    assert (placed.host, placed.bound_for) == ('compute-2', '')


def test_claims_expire_when_nobody_confirmed_them(store, snapshot, moving):
    kept, lost = (claim_on(snapshot, 0) for _ in range(2))
    write_claims(store, kept, lost)
    seen = dict.fromkeys((kept.consumer, moving.consumer), 'compute-1')
    store.write(lambda w: lifecycle.confirm(w, seen))

    def expire(*how):
        return store.write(lambda w: released_claims.expire(w, *how))

    with store.reading() as conn:
        assert not released_claims.any_to_expire(conn, 60)
        assert released_claims.any_to_expire(conn, -60)
    assert expire(60) == {'claims': 0, 'moves': 0}
    # Others may say when a move ends.
    assert expire(-60, False) == {'claims': 1, 'moves': 0}
    with store.reading() as conn:
        assert not released_claims.any_to_expire(conn, -60, moves=False)
    assert expire(-60) == {'claims': 0, 'moves': 1}
    assert used_memory(store) == [2048, 0]


@pytest.mark.parametrize('policy', ['anti-affinity', 'affinity'])
def test_move_is_lost_when_it_breaks_the_policy_of_its_group(store, policy):
    import_two_hosts(store)
    import_inventory(
        store, {'server_groups': [{'uuid': GROUP, 'policy': policy}]}
    )
    snapshot = load_snapshot(store)
    rows = (0, 1) if policy == 'anti-affinity' else (0, 0)
    members = [claim_on(snapshot, row, group=GROUP) for row in rows]
    for member in members:
        write_claims(store, member, policies=STRICT)
    moving = move_of(snapshot, members[0].consumer, group=GROUP)
    with pytest.raises(claims.ClaimLost):
        write_claims(store, moving, policies=STRICT)
    assert audit_findings(store) == []


def test_instance_is_where_it_is_seen_when_claimed_elsewhere(store, claim):
    here = Instance(uuid=claim.consumer, host='compute-2')
    store.write(lambda w: instance_rows.report(w, [here]))
    assert used_memory(store) == [0, 0]
    placed = load_snapshot(store).hosts.instances.get(claim.consumer)
    assert placed is not None
    assert (placed.host, placed.claimed) == ('compute-2', False)


def test_unconfirmed_claims_stay_when_a_host_lists_its_instances(
    store, snapshot
):
    coming, there, gone = (claim_on(snapshot, 0) for _ in range(3))
    write_claims(store, coming, there, gone)
    seen = {one.consumer: 'compute-1' for one in (there, gone)}
    store.write(lambda w: lifecycle.confirm(w, seen))
    new = str(uuid.uuid4())
    listed = [there.consumer, new]
    changed = store.write(lambda w: instance_rows.sync(w, 'compute-1', listed))
    assert changed == sorted([gone.consumer, new])
    index = load_snapshot(store).hosts.instances
    assert {one.uuid for one in index} == {
        coming.consumer, there.consumer, new,
    }  # fmt: skip
    assert used_memory(store) == [2048, 0]


@pytest.fixture
def follow(store):
    """Give a function that checks what a daemon learns of a change."""

    def check(change):
        before = load_snapshot(store)
        store.write(change)
        with store.reading() as conn:
            refreshed = change_feed.refresh(conn, before)
        assert_same_snapshot(refreshed, load_snapshot(store))
        return refreshed.hosts

    return check


@pytest.mark.parametrize('amounts', [{}, {'MEMORY_MB': 64}])
def test_daemons_learn_that_a_reported_instance_does_not_move(
    store, snapshot, follow, amounts
):
    one = Instance(uuid=str(uuid.uuid4()), host='compute-1')
    store.write(lambda w: instance_rows.report(w, [one]))
    write_claims(store, move_of(snapshot, one.uuid, amounts=amounts))
    assert load_snapshot(store).hosts.instances.get(one.uuid).bound_for
    hosts = follow(lambda w: lifecycle.release(w, [one.uuid]))
    placed = hosts.instances.get(one.uuid)
    assert (placed.host, placed.bound_for) == ('compute-1', '')


def test_daemons_count_the_instances_of_a_host_when_one_is_gone(store, follow):
    """It was reported only, and took nothing that could be given back."""
    import_two_hosts(store)
    here, there = (
        Instance(uuid=str(uuid.uuid4()), host=host)
        for host in ('compute-1', 'compute-2')
    )
    hosts = follow(lambda w: instance_rows.report(w, [here, there]))
    assert hosts.number('num_instances').tolist() == [1, 1]
    gone = [here.uuid]
    hosts = follow(lambda w: lifecycle.remove_from_host(w, 'compute-1', gone))
    assert hosts.number('num_instances').tolist() == [0, 1]
