"""Hosts are selected among the candidates of the placement service.

The service is a stand-in that keeps every call: the real one is met in
``tests/interop``.
"""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from scheduler_service import errors, factory
from scheduler_service.compute.placement.candidate_stage import CandidateStage
from tests.rigs import fake_placement
from tests.rigs.fake_placement import FakePlacement
from tests.support.engines import Message
from tests.support.placement_engines import (
    ROOM,
    TAKEN,
    add_host,
    engine,
    new,
    records,
    request,
)
from tests.support.services import new_conf
from tests.support.stores import claim_state, import_inventory
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.db
FPGA = 'CUSTOM_FPGA'


@pytest.fixture
def store(make_store: Any) -> Any:
    """A store."""
    return make_store('sqlite')


def has_hosts(store: Any, fake: FakePlacement, *sizes: list[int]) -> list[str]:
    """Add hosts, the first of them best weighed; return their providers.

    :param sizes: how much each provider below a host has
    """
    made = []
    for at, children in enumerate(sizes):
        room = {**ROOM, 'MEMORY_MB': ROOM['MEMORY_MB'] - 1024 * at}
        root = add_host(store, fake, **room)
        for amount in children:
            fake.add_provider(root, CUSTOM_FPGA=amount)
        made.append(root)
    return made


def queries(fake: FakePlacement) -> list[dict[str, str]]:
    """Return the queries for candidates that requests made."""
    return [
        dict(parse_qsl(urlsplit(path).query))
        for _, path in fake.calls
        if 'allocation_candidates' in path and FPGA in path
    ]


def grouped(*uuids: str, amount: int = 1) -> Any:
    """Return a request for instances that take something of one provider."""
    group = {'suffix': '1', 'resources': {FPGA: amount}}
    return request(*uuids, resource_groups=[group])


def test_the_best_hosts_are_asked_about_alone(store, fake):
    roots = has_hosts(store, fake, *[[4]] * 6)
    with engine(store, fake) as running:
        (vm,) = new()
        answer = running.select_destinations(grouped(vm)).result(LIMIT_S)
    (placed,) = answer.placements
    assert placed.selected.uuid == roots[0]
    assert [one.uuid for one in placed.alternates] == roots[1:3]
    assert fake.allocations[vm].keys() == {
        *placed.selected.allocation['allocations']
    }
    assert [
        (query['in_tree'], query['in_tree1']) for query in queries(fake)
    ] == [(root, root) for root in roots[:3]]


def test_a_host_that_was_disabled_a_moment_ago_is_not_selected(store, fake):
    """Before its providers are read again, or its service is."""
    first, second, *_ = has_hosts(store, fake, *[[4]] * 3)
    fake.traits[first] = {'COMPUTE_STATUS_DISABLED'}
    with engine(store, fake, follows=False) as running:
        answer = running.select_destinations(grouped(*new())).result(LIMIT_S)
    assert answer.placements[0].selected.uuid == second


def test_all_are_asked_about_after_two_without_a_candidate(store, fake):
    roots = has_hosts(store, fake, *[[1, 1]] * 4, [2])
    with engine(store, fake) as running:
        (vm,) = new()
        answer = running.select_destinations(grouped(vm, amount=2)).result(
            LIMIT_S
        )
    (placed,) = answer.placements
    assert placed.selected.uuid == roots[-1]
    asked = [query.get('in_tree') for query in queries(fake)]
    assert asked == [*roots[:2], None]


def test_a_refusal_names_the_group_without_a_candidate(store, fake):
    has_hosts(store, fake, [1, 1], [1, 1])
    with engine(store, fake) as running:
        (vm,) = new()
        with pytest.raises(errors.NoValidHost) as caught:
            running.select_destinations(grouped(vm, amount=2)).result(LIMIT_S)
    assert str(caught.value) == (
        'No valid host was found. The placement service has no candidate '
        'with group 1 (CUSTOM_FPGA:2)'
    )
    assert fake.allocations == {}
    assert records(store) == set()


def test_a_host_that_appears_during_the_query_is_selected(
    store, fake, monkeypatch
):
    run, added = CandidateStage.run, []

    def and_add_a_host(stage: Any, jobs: Any, table: Any) -> None:
        run(stage, jobs, table)
        if not added:
            added.extend(has_hosts(store, fake, [4]))
            # Hosts that were read before do not count for it.
            jobs[0].queued_at = time.monotonic()

    monkeypatch.setattr(CandidateStage, 'run', and_add_a_host)
    with engine(store, fake) as running:
        (vm,) = new()
        answer = running.select_destinations(grouped(vm)).result(LIMIT_S)
    (placed,) = answer.placements
    assert fake.allocations[vm].keys() == {
        *placed.selected.allocation['allocations']
    }


def test_a_request_that_columns_decide_is_not_asked_about(store, fake):
    has_hosts(store, fake, [1])
    with engine(store, fake) as running:
        (vm,) = new()
        running.select_destinations(request(vm)).result(LIMIT_S)
    assert [*fake.allocations[vm].values()] == [TAKEN]
    assert queries(fake) == []


def test_the_next_candidate_is_claimed_where_the_first_has_no_room(
    store, fake
):
    (root,) = has_hosts(store, fake, [1, 1])
    (other,) = new()
    taken: list[str] = []

    def claims(bodies: Any) -> bool:
        for body in bodies.values():
            taken.extend({*body['allocations']} - {root})
        return True

    def taken_before(handler: Any, commit: Any) -> None:
        amounts = {taken[0]: {'resources': {FPGA: 1}}}
        fake.commit(
            {other: {'allocations': amounts, 'consumer_generation': None}}
        )
        handler.say_own(*commit())

    fake.fail(taken_before, claims, times=1)
    with engine(store, fake) as running:
        (vm,) = new()
        answer = running.select_destinations(grouped(vm)).result(LIMIT_S)
        (child,) = fake.allocations[vm].keys() - {root}
        running.release([vm]).result(LIMIT_S)
        wait_until(lambda: fake.allocations.keys() == {other})
        wait_until(lambda: records(store) == set())
    (placed,) = answer.placements
    assert len(taken) == 1
    assert child != taken[0]
    assert placed.selected.allocation['mappings'] == {
        '': [root], '1': [child],
    }  # fmt: skip
    assert len(queries(fake)) == 1


def test_candidates_are_asked_for_again_by_another_configuration(store, fake):
    roots = has_hosts(store, fake, [4], [4])
    no_room = fake_placement.answer(409, 'placement.undefined_code')
    held = fake_placement.Held(no_room)
    fake.fail(held, fake.claims, times=1)
    with engine(store, fake) as running:
        future = running.select_destinations(grouped(*new()))
        wait_until(lambda: held.waiting)
        running.check(factory.engine_config(new_conf()))()
        before = len(queries(fake))
        held.let_go()
        (placed,) = future.result(LIMIT_S).placements
    assert placed.selected.uuid == roots[1]
    assert len(queries(fake)) > before


def test_several_instances_get_providers_of_their_own(store, fake):
    has_hosts(store, fake, [1, 1], [1])
    with engine(store, fake) as running:
        vms = new(3)
        running.select_destinations(grouped(*vms)).result(LIMIT_S)
        held = [fake.allocations[vm] for vm in vms]
        children = [
            provider
            for given in held
            for provider, amounts in given.items()
            if FPGA in amounts
        ]
        assert len({*children}) == 3
        running.release(vms).result(LIMIT_S)
        wait_until(lambda: not fake.allocations)
        with pytest.raises(errors.NoValidHost):
            running.select_destinations(grouped(*new(4))).result(LIMIT_S)
        assert fake.allocations == {}


def has_single_cpus(store: Any) -> None:
    """Add a host with one CPU for each kind of instances."""
    host = {
        'host': 'small', 'vcpus': 1, 'memory_mb': 4096, 'local_gb': 100,
        'cpu_allocation_ratio': 1.0, 'resources': {'PCPU': {'total': 1}},
    }  # fmt: skip
    import_inventory(store, {'hosts': [host]})


def pinned(*uuids: str, **more: Any) -> Any:
    """Return a request for instances with two dedicated CPUs each."""
    flavor = {'vcpus': 2, 'memory_mb': 512, 'root_gb': 1}
    specs = {'hw:cpu_policy': 'dedicated'}
    return request(*uuids, flavor={**flavor, 'extra_specs': specs}, **more)


@pytest.mark.parametrize(
    'groups', [[], [{'suffix': '1', 'resources': {FPGA: 1}}]]
)
def test_a_fallback_is_claimed_where_no_host_has_the_first_resources(
    store, fake, groups
):
    roots = has_hosts(store, fake, [4], [4])
    has_single_cpus(store)
    (vm,) = new()
    taken = {**TAKEN, 'VCPU': 2}
    asked = pinned(vm, resource_groups=groups)
    message = Message('select_destinations', (asked,), {})
    with engine(store, fake) as running:
        first = message.run(running)
        (placed,) = first['placements']
        assert [
            selected['allocation']['allocations'][root]['resources']
            for selected, root in zip(
                [placed['selected'], *placed['alternates']],
                roots,
                strict=True,
            )
        ] == [taken, taken]
        held = fake.allocations[vm]
        assert held[roots[0]] == taken
        assert len(held) == 1 + len(groups)
        assert message.run(running) == first
        assert fake.allocations[vm] == held


def test_a_refusal_says_what_the_first_resources_lack(store, fake):
    has_single_cpus(store)
    (vm,) = new()
    with engine(store, fake) as running:
        future = running.select_destinations(pinned(vm))
        with pytest.raises(errors.NoValidHost, match='lacks 1 PCPU'):
            future.result(LIMIT_S)


def test_a_move_takes_a_candidate_of_another_host_beside_the_first(
    store, fake
):
    """As an evacuation or a migration does."""
    roots = has_hosts(store, fake, [4], [1, 2])
    with engine(store, fake) as running:
        (vm,) = new()
        running.select_destinations(grouped(vm, amount=2)).result(LIMIT_S)
        first = dict(fake.allocations[vm])
        assert roots[0] in first
        moved = Message(
            'select_destinations', (grouped(vm, amount=2),), {'move': True}
        )
        answer = moved.run(running)
        (placed,) = answer['placements']
        assert placed['selected']['uuid'] == roots[1]
        held = fake.allocations[vm]
        given = placed['selected']['allocation']['allocations']
        assert {uuid: each['resources'] for uuid, each in given.items()} == {
            uuid: amounts
            for uuid, amounts in held.items()
            if uuid not in first
        }
        assert first.items() <= held.items()
        assert len(held) == 4
        assert moved.run(running) == answer
        assert fake.allocations[vm] == held


def test_a_message_that_comes_again_is_refused_when_its_claim_is_not_completed(
    store, fake
):
    has_hosts(store, fake, [])
    fake.fail(fake_placement.answer(500), fake.claims)
    with engine(store, fake) as running:
        (instance,) = new()
        message = Message('select_destinations', (request(instance),))
        # The daemon that had it before did not come to an answer.
        message.deliveries = 1
        with pytest.raises(errors.PlacementUnavailable):
            message.deliver(running).result(LIMIT_S)
        assert claim_state(store, instance) is None
