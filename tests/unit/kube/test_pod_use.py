"""What pods use on nodes."""

from __future__ import annotations

import pytest

from scheduler_service.kube.pod_reader import PlacedPod, PodUsage
from scheduler_service.kube.pod_use import PodUse
from tests.support.clocks import Clock

USAGE = PodUsage({'VCPU': 0.5, 'MEMORY_MB': 10.0, 'DISK_GB': 0.0}, {'A': 2})


def counted(use: PodUse, *nodes: str, name: str = 'A') -> list[float]:
    """Return what is used of a class for a pod of the lowest priority."""
    numbers = use.numbers_of(nodes)
    amounts: list[float] = use.used(name, numbers, priority=-1).tolist()
    return amounts


def loads(use: PodUse, *nodes: str) -> list[float]:
    """Return how many pods count on each node, assumed ones as well."""
    load = use.load(use.numbers_of(nodes))[0] / USAGE.load['VCPU']
    amounts: list[float] = load.tolist()
    return amounts


def test_pod_counts_where_it_was_seen_when_it_was_assumed_elsewhere():
    use = PodUse(5.0)
    use.assume(PlacedPod('u', 'a', USAGE))
    assert loads(use, 'a', 'b') == [1, 0]
    use.see(PlacedPod('u', 'b', USAGE))
    assert loads(use, 'a', 'b') == [0, 1]
    assert counted(use, 'a', 'b') == [0, 2]
    assert use.count() == (1, 0)
    # It is not asked about again; what is seen wins all the same.
    use.assume(PlacedPod('u', 'a', USAGE))
    assert counted(use, 'a', 'b') == [0, 2]
    use.remove('u')
    assert counted(use, 'a', 'b') == loads(use, 'a', 'b') == [0, 0]


def test_assumed_pod_is_taken_back_when_it_is_not_seen_in_time():
    clock = Clock()
    use = PodUse(5.0, clock)
    use.assume(PlacedPod('u', 'a', USAGE))
    clock.now += 3.0
    use.assume(PlacedPod('v', 'a', USAGE))
    use.forget_old()
    assert use.count() == (0, 2)
    clock.now += 2.0
    use.forget_old()
    assert loads(use, 'a') == [1]
    use.set_stale(True)
    clock.now += 9.0
    use.forget_old()
    assert loads(use, 'a') == [1]
    use.set_stale(False)
    use.forget_old()
    assert loads(use, 'a') == [0]


def test_pod_moves_when_it_is_assumed_again():
    use = PodUse(5.0)
    use.assume(PlacedPod('u', 'a', USAGE))
    use.assume(PlacedPod('u', 'b', USAGE))
    assert loads(use, 'a', 'b') == [0, 1]
    assert use.count() == (0, 1)


def test_nothing_is_assumed_when_that_is_off():
    use = PodUse(0.0)
    use.assume(PlacedPod('u', 'a', USAGE))
    assert use.count() == (0, 0)


def test_listing_replaces_what_was_seen_but_not_what_is_assumed():
    use = PodUse(5.0)
    assert not use.complete
    use.see(PlacedPod('gone', 'a', USAGE))
    use.see(PlacedPod('stays', 'a', USAGE))
    use.assume(PlacedPod('new', 'b', USAGE))
    use.replace([PlacedPod('stays', 'b', USAGE)])
    assert use.complete
    assert loads(use, 'a', 'b') == [0, 2]
    assert counted(use, 'a', 'b') == [0, 2]
    assert use.is_seen('stays')
    assert not use.is_seen('new')


def test_pod_that_was_seen_while_others_were_listed_stays():
    use = PodUse(5.0)
    use.see(PlacedPod('before', 'a', USAGE))
    use.begin_listing()
    use.see(PlacedPod('meanwhile', 'b', USAGE))
    use.replace([])
    assert counted(use, 'a', 'b') == [0, 2]
    use.begin_listing()
    use.replace([])
    assert counted(use, 'b') == [0]


@pytest.mark.parametrize('ended_before', [False, True])
def test_pod_that_is_being_bound_stays_when_a_list_lacks_it(ended_before):
    use = PodUse(5.0)
    use.see(PlacedPod('u', 'a', USAGE), binding=True)
    use.begin_listing()
    if ended_before:
        use.end_binding('u', bound=True)
    use.replace([])
    assert counted(use, 'a') == [2]
    use.end_binding('u', bound=True)
    use.begin_listing()
    use.replace([])
    assert counted(use, 'a') == [0]


def test_pod_that_was_not_bound_is_counted_no_more():
    use = PodUse(5.0)
    use.see(PlacedPod('u', 'a', USAGE), binding=True)
    use.end_binding('u', bound=False)
    use.begin_listing()
    use.replace([])
    assert counted(use, 'a') == [0]


def test_pod_that_was_seen_stays_where_its_binding_is_in_doubt():
    use = PodUse(5.0)
    use.see(PlacedPod('u', 'a', USAGE), binding=True)
    assert use.is_binding('u')
    use.see(PlacedPod('u', 'a', USAGE))
    assert not use.is_binding('u')
    use.end_binding('u', bound=False)
    assert counted(use, 'a') == [2]


def test_own_use_of_a_pod_is_left_out():
    use = PodUse(5.0)
    numbers = use.numbers_of(['b', 'a'])
    for count in (use.assume, use.nominate, use.see):
        count(PlacedPod('u', 'a', USAGE))
        assert use.used('A', numbers, 'u', priority=-1).tolist() == [0, 0]
        assert use.load(numbers, 'u')[0].tolist() == [0, 0]
        assert use.load(numbers, 'other')[0].tolist() == [0, 0.5]
    assert use.used('A', numbers, 'other').tolist() == [0, 2]


def test_assumed_pod_adds_to_load_and_takes_no_device():
    use = PodUse(5.0)
    for uid in 'uvw':
        use.assume(PlacedPod(uid, 'a', USAGE))
    assert loads(use, 'a', 'b') == [3, 0]
    assert counted(use, 'a', 'b') == [0, 0]
    use.see(PlacedPod('v', 'a', USAGE))
    use.see(PlacedPod('w', 'b', USAGE))
    assert loads(use, 'a', 'b') == [2, 1]
    assert counted(use, 'a', 'b') == [2, 2]


def test_nominated_pod_counts_for_pods_of_no_higher_priority():
    use = PodUse(5.0)
    use.see(PlacedPod('seen', 'a', USAGE, -5))
    use.nominate(PlacedPod('low', 'a', USAGE, -1))
    use.nominate(PlacedPod('high', 'b', USAGE, 7))
    for priority, used in (
        (-2, [4, 2]), (-1, [4, 2]), (0, [2, 2]), (7, [2, 2]), (8, [2, 0]),
    ):  # fmt: skip
        found = use.used('A', use.numbers_of(['a', 'b']), priority=priority)
        assert found.tolist() == used, priority
    # None of them counts where something is bound.
    assert use.used('A', use.numbers_of(['a', 'b'])).tolist() == [2, 0]


def test_use_is_kept_when_there_are_more_nodes_than_expected():
    use = PodUse(5.0)
    use.see(PlacedPod('u', 'n0', USAGE))
    names = [f'n{at}' for at in range(5000)]
    use.see(PlacedPod('v', 'n4999', USAGE))
    found = counted(use, *names, name='pods')
    assert sum(found) == 2
    assert (found[0], found[4999]) == (1, 1)


def test_outcomes_of_assumed_pods_are_reported():
    clock, outcomes = Clock(), []
    use = PodUse(5.0, clock, outcomes.append)
    for uid in 'uvw':
        use.assume(PlacedPod(uid, 'a', USAGE))
    use.see(PlacedPod('u', 'a', USAGE))
    use.see(PlacedPod('v', 'b', USAGE))
    use.see(PlacedPod('v', 'b', USAGE))
    use.see(PlacedPod('x', 'b', USAGE))
    clock.now += 5.0
    use.forget_old()
    assert outcomes == ['there', 'elsewhere', 'expired']


def test_nodes_that_pass_by_are_not_remembered():
    use = PodUse(5.0)
    names = [f'n{at}' for at in range(5000)]
    assert set(use.numbers_of(names, passing=True)) == {0}
    use.see(PlacedPod('u', 'n7', USAGE))
    # One number for the node of the pod, and none for all the others.
    numbers = use.numbers_of(names, passing=True)
    assert set(numbers) == {0, 1}
    assert use.used('A', numbers)[6:9].tolist() == [0, 2, 0]
    assert use.load(numbers, without='u')[:, 7].tolist() == [0, 0, 0]


def test_nominated_pod_counts_until_it_is_seen_or_nominated_no_more():
    clock, outcomes = Clock(), []
    use = PodUse(5.0, clock, outcomes.append)
    use.assume(PlacedPod('u', 'b', USAGE))
    use.nominate(PlacedPod('u', 'a', USAGE))
    # Not even a later guess moves it, and it does not expire.
    use.assume(PlacedPod('u', 'b', USAGE))
    clock.now += 9.0
    use.forget_old()
    assert counted(use, 'a', 'b') == [2, 0]
    use.end_nomination('u')
    assert counted(use, 'a') == [0]
    use.nominate(PlacedPod('u', 'a', USAGE))
    use.see(PlacedPod('u', 'b', USAGE))
    # The end of the nomination comes after the news of its place, or a late
    # copy of it.
    use.nominate(PlacedPod('u', 'a', USAGE))
    use.end_nomination('u')
    assert counted(use, 'a', 'b') == [0, 2]
    assert outcomes == []


def test_list_replaces_nominated_pods_alone():
    use = PodUse(5.0)
    use.see(PlacedPod('seen', 'a', USAGE))
    use.assume(PlacedPod('assumed', 'b', USAGE))
    for name in ('old', 'kept'):
        use.nominate(PlacedPod(name, 'c', USAGE))
    use.nominate_only(
        PlacedPod(name, 'd', USAGE) for name in ('kept', 'new', 'seen')
    )
    assert counted(use, 'a', 'b', 'c', 'd') == [2, 0, 0, 4]
    # A list of placed pods leaves them.
    use.replace([])
    assert counted(use, 'a', 'b', 'c', 'd') == [0, 0, 0, 4]
    assert loads(use, 'a', 'b', 'c', 'd') == [0, 1, 0, 2]
