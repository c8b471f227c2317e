"""Nothing is refused for room that the placement service knows to be free.

The service is a stand-in that keeps every call: the real one is met in
``tests/interop``.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.compute import translation
from scheduler_service.compute.placement import claimer
from scheduler_service.store import schema
from tests.rigs.fake_placement import FakePlacement, answer
from tests.support.placement_engines import (
    ROOM,
    add_host,
    engine,
    new,
    request,
)
from tests.support.stores import import_inventory, stored_host
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.db
HOST, CELL = 'h1', '333e1312-9c87-4135-89d3-3b76fdebd1b5'
# As much as the host has.
WHOLE = {'VCPU': 64, 'MEMORY_MB': 512, 'DISK_GB': 1}


@pytest.fixture
def store(make_store: Any) -> Any:
    """A store."""
    return make_store('sqlite')


@pytest.fixture
def provider(store: Any, fake: FakePlacement) -> str:
    """The provider of the only host, which is in a cell."""
    made = fake.add_provider(**ROOM)
    host = {
        'host': HOST, 'uuid': made, 'cell_uuid': new()[0], 'vcpus': 64,
        'memory_mb': ROOM['MEMORY_MB'], 'local_gb': ROOM['DISK_GB'],
        'cpu_allocation_ratio': 1.0, 'ram_allocation_ratio': 1.0,
    }  # fmt: skip
    import_inventory(store, {'hosts': [host]})
    return made


def whole_host(vm: str, **more: Any) -> Any:
    """Return a request for all processors of a host."""
    return request(vm, amounts=WHOLE, **more)


def is_made(store: Any, vm: str) -> bool:
    """Whether the store knows that the allocations of a claim were made."""
    table = schema.stage_records.c
    query = sa.select(table.made_at).where(table.instance_uuid == vm)
    with store.reading() as conn:
        return conn.execute(query).scalar() is not None


def asked(fake: FakePlacement) -> int:
    """Return how often candidates for a whole host were asked for."""
    return sum(
        'allocation_candidates' in path and 'VCPU%3A64' in path
        for _, path in fake.calls
    )


def test_claims_are_known_to_be_made_while_others_come(
    store, fake, provider, monkeypatch
):
    # It is never without a call for long.
    monkeypatch.setattr(claimer, '_THREADS', 1)
    little = {'MEMORY_MB': 1}
    (first,) = new()
    until = time.monotonic() + LIMIT_S
    with engine(store, fake) as running:
        running.select_destinations(request(first, amounts=little)).result(
            LIMIT_S
        )
        while not is_made(store, first):
            assert time.monotonic() < until
            more = request(*new(), amounts=little)
            running.select_destinations(more).result(LIMIT_S)


def test_a_claim_that_the_service_dropped_makes_room(store, fake, provider):
    *dropped, last = new(3)
    with engine(store, fake) as running:
        for vm in dropped:
            running.select_destinations(whole_host(vm)).result(LIMIT_S)
            # As the compute service does where a server cannot be built there,
            # at once: before it is recorded that the allocations were made.
            fake.allocations.pop(vm)
        answer = running.select_destinations(whole_host(last)).result(LIMIT_S)
    (placed,) = answer.placements
    assert placed.selected.uuid == provider
    assert fake.allocations == {last: {provider: WHOLE}}


def test_use_that_is_read_late_keeps_nobody_out(store, fake, provider):
    (other,) = new()
    body = {provider: {'resources': WHOLE}}
    fake.commit({other: {'allocations': body, 'consumer_generation': None}})
    with engine(store, fake) as running:
        wait_until(lambda: stored_host(store, HOST).vcpus_used == 64)
        fake.allocations.pop(other)
        (vm,) = new()
        running.select_destinations(whole_host(vm)).result(LIMIT_S)
    assert fake.allocations == {vm: {provider: WHOLE}}


def dedicated(vm: str) -> Any:
    """Return a request for two dedicated CPUs."""
    flavor = {
        'vcpus': 2,
        'memory_mb': 512,
        'extra_specs': {'hw:cpu_policy': 'dedicated'},
    }
    return request(vm, flavor=flavor)


@contextlib.contextmanager
def dedicating(store: Any, fake: FakePlacement, more: Any) -> Iterator[Any]:
    """Run an engine beside a host whose two dedicated CPUs are taken.

    :param more: the CPUs that its next report has, read before a refusal
    """
    made = fake.add_provider(PCPU=2, MEMORY_MB=4096, DISK_GB=100)

    def has_cpus(*cpus: int, pinned: Any = ()) -> None:
        cell = {
            'id': 0, 'cpuset': [], 'pcpuset': [*cpus], 'memory': 4096,
            'pinned_cpus': [*pinned],
        }  # fmt: skip
        host = {
            'host': HOST, 'uuid': made, 'cell_uuid': CELL, 'vcpus': 0,
            'memory_mb': 4096, 'local_gb': 100,
            'resources': {'PCPU': {'total': 2}},
            'numa_topology': {'cells': [cell]},
        }  # fmt: skip
        import_inventory(store, {'hosts': [host]})

    reads: list[float] = []

    def mirror() -> bool:
        if not reads:
            has_cpus(*more, pinned=[0, 1])
        reads.append(time.monotonic())
        return True

    has_cpus(0, 1)
    filters = ['NUMATopologyFilter']
    with engine(
        store, fake, mirror=mirror, filter_scheduler__enabled_filters=filters
    ) as running:
        running.select_destinations(dedicated(*new())).result(LIMIT_S)
        has_cpus(0, 1, pinned=[0, 1])
        yield running, made, reads


def test_what_is_left_after_a_look_is_looked_up_too(store, fake):
    """NUMA cells were read in the databases, and the amounts were not."""
    (vm,) = new()
    with dedicating(store, fake, range(4)) as (running, made, reads):
        fake.set_totals(made, PCPU=4, MEMORY_MB=4096, DISK_GB=100)
        running.select_destinations(dedicated(vm)).result(LIMIT_S)
    assert fake.allocations[vm] == {made: {'PCPU': 2, 'MEMORY_MB': 512}}
    assert reads


@pytest.mark.parametrize(('more', 'most'), [(2, 1), (4, 3)])
def test_what_stays_is_not_looked_up_again(store, fake, more, most):
    """Each thing that leaves no host for a form of the request is once."""
    (vm,) = new()
    with (
        dedicating(store, fake, range(more)) as (running, _, reads),
        pytest.raises(errors.NoValidHost),
    ):
        running.select_destinations(dedicated(vm)).result(LIMIT_S)
    assert 1 <= len(reads) <= most
    assert vm not in fake.allocations


def test_a_full_host_is_asked_about_once(store, fake, provider):
    first, second = new(2)
    with engine(store, fake) as running:
        running.select_destinations(whole_host(first)).result(LIMIT_S)
        with pytest.raises(errors.NoValidHost, match='h1 lacks 64 vCPUs'):
            running.select_destinations(whole_host(second)).result(LIMIT_S)
    assert asked(fake) == 1
    assert fake.allocations == {first: {provider: WHOLE}}


def test_what_room_does_not_decide_is_not_asked_about(store, fake, provider):
    with engine(store, fake) as running:
        first, second = new(2)
        running.select_destinations(whole_host(first)).result(LIMIT_S)
        with pytest.raises(errors.NoValidHost):
            running.select_destinations(
                whole_host(second, availability_zone='elsewhere')
            ).result(LIMIT_S)
    assert asked(fake) == 0


def test_a_service_that_is_away_changes_no_refusal(
    store, fake, provider, monkeypatch
):
    with engine(store, fake) as running:
        first, second = new(2)
        running.select_destinations(whole_host(first)).result(LIMIT_S)
        monkeypatch.setattr(fake, 'read', lambda *_: (503, {}))
        with pytest.raises(errors.NoValidHost, match='h1 lacks 64 vCPUs'):
            running.select_destinations(whole_host(second)).result(LIMIT_S)


def refused(fake: FakePlacement) -> None:
    """Have the service refuse claims on hosts that have room."""
    fake.fail(answer(409, 'placement.undefined_code'), fake.claims)


def test_a_refusal_of_the_service_is_the_reason(store, fake, provider, caplog):
    refused(fake)
    with (
        engine(store, fake) as running,
        pytest.raises(errors.NoValidHost) as raised,
        caplog.at_level(logging.INFO),
    ):
        running.select_destinations(request(*new())).result(LIMIT_S)
    why = 'the placement service refused it: as it was told'
    assert f'ignore_hosts alone keeps out 1 ({why})' in str(raised.value)
    assert raised.value.facts['filters'][0]['reason'] == why
    assert raised.value.facts['excluded_hosts'] == {HOST: why}
    assert f'on host {HOST}: {why}' in caplog.text


@pytest.mark.parametrize(
    'detail', ['consumer generation conflict', 'resource provider conflict']
)
def test_a_conflict_at_each_try_is_the_reason(store, fake, provider, detail):
    """Hosts have room: the answer does not say that they lack any."""
    error = {'code': 'placement.concurrent_update', 'detail': detail}
    tries = []

    def conflict(handler: Any, commit: Any) -> None:
        tries.append(time.monotonic())
        handler.say_own(409, {'errors': [{'status': 409, **error}]})

    fake.fail(conflict, fake.claims)
    (vm,) = new()
    with (
        engine(store, fake) as running,
        pytest.raises(errors.Conflict, match=detail) as raised,
    ):
        running.select_destinations(request(vm)).result(LIMIT_S)
    assert len(tries) <= 5
    assert tries[-1] - tries[0] > 0.5
    short = str(translation.failure(raised.value, full=False))
    assert 'allocations were changed by others' in short
    assert 'not enough hosts' not in short


def test_the_last_refusal_is_the_reason_where_no_attempt_is_left(store, fake):
    hosts = [f'h-{add_host(store, fake)}' for _ in range(12)]
    refused(fake)
    with (
        engine(store, fake) as running,
        pytest.raises(errors.MaxRetriesExceeded) as raised,
    ):
        running.select_destinations(request(*new())).result(LIMIT_S)
    assert 'another request' not in str(raised.value)
    assert str(raised.value).endswith('refused it: as it was told')
    excluded = raised.value.facts['excluded_hosts']
    assert len(excluded) == 9
    assert excluded.keys() < {*hosts}


def test_a_request_that_lost_its_claims_takes_no_shared_cpus(store, fake):
    """Hosts had dedicated ones: it begins with no other form."""
    for _ in range(12):
        made = fake.add_provider(**ROOM, PCPU=4)
        host = {
            'host': f'h-{made}', 'uuid': made, 'vcpus': ROOM['VCPU'],
            'memory_mb': ROOM['MEMORY_MB'], 'local_gb': ROOM['DISK_GB'],
            'resources': {'PCPU': {'total': 4}},
        }  # fmt: skip
        import_inventory(store, {'hosts': [host]})

    def dedicated(bodies: Any) -> bool:
        return fake.claims(bodies) and 'PCPU' in str(bodies)

    fake.fail(answer(409, 'placement.undefined_code'), dedicated)
    flavor = {
        'vcpus': 1,
        'memory_mb': 512,
        'extra_specs': {'hw:cpu_policy': 'dedicated'},
    }
    with (
        engine(store, fake) as running,
        pytest.raises(errors.MaxRetriesExceeded),
    ):
        running.select_destinations(request(*new(), flavor=flavor)).result(
            LIMIT_S
        )
    assert not fake.allocations


@pytest.mark.parametrize('said', [True, False])
def test_a_move_from_the_only_host_that_fits_says_so(
    store, fake, provider, said
):
    (vm,) = new()
    more = {} if said else {'ignore_hosts': [HOST.upper()]}
    with engine(store, fake) as running:
        running.select_destinations(request(vm)).result(LIMIT_S)
        running.confirm([vm]).result(LIMIT_S)
        with pytest.raises(errors.NoValidHost) as raised:
            running.select_destinations(
                request(vm, **more), move=said or None
            ).result(LIMIT_S)
    reason = raised.value.facts['filters'][0]['reason']
    assert reason == 'the instance moves away from it'


GOLD = 'CUSTOM_GOLD'


def gold(vm: str, kind: str = 'required', **more: Any) -> Any:
    """Return a request that requires or forbids a trait."""
    return request(vm, traits={GOLD: kind}, **more)


def is_read(fake: FakePlacement, provider: str) -> bool:
    """Whether the traits of a provider were read."""
    return any(path.endswith('/traits') for _, path in fake.calls)


@contextlib.contextmanager
def followed(store: Any, fake: FakePlacement) -> Iterator[Any]:
    """Run an engine, and wait until all providers were read once."""
    with engine(store, fake) as running:
        (vm,) = new()
        running.select_destinations(request(vm)).result(LIMIT_S)
        running.release([vm]).result(LIMIT_S)
        wait_until(lambda: not fake.allocations)
        wait_until(lambda: ('GET', '/resource_providers') in fake.calls)
        # The last that is read of a provider.
        wait_until(
            lambda: any(
                path.endswith('/inventories') for _, path in fake.calls
            )
        )
        yield running


@pytest.mark.parametrize('kind', ['required', 'forbidden'])
def test_a_trait_that_others_changed_is_seen_before_a_refusal(
    store, fake, provider, kind
):
    fake.traits[provider] = {GOLD} if kind == 'forbidden' else set()
    (vm,) = new()
    with followed(store, fake) as running:
        fake.traits[provider] = {GOLD} if kind == 'required' else set()
        answer = running.select_destinations(gold(vm, kind)).result(LIMIT_S)
    assert answer.placements[0].selected.host == HOST
    assert fake.allocations.keys() == {vm}


def test_a_new_provider_below_is_seen_before_a_refusal(store, fake, provider):
    (vm,) = new()
    with followed(store, fake) as running:
        child = fake.add_provider(provider, CUSTOM_FPGA=1)
        fake.traits[child] = {GOLD}
        asked = gold(vm, amounts={'VCPU': 1, 'CUSTOM_FPGA': 1})
        running.select_destinations(asked).result(LIMIT_S)
    assert fake.allocations[vm][child] == {'CUSTOM_FPGA': 1}


def test_a_trait_that_nobody_has_is_refused_after_one_look(
    store, fake, provider
):
    with followed(store, fake) as running:
        before = len(fake.calls)
        with pytest.raises(errors.NoValidHost, match=f'lacks {GOLD}'):
            running.select_destinations(gold(*new())).result(LIMIT_S)
        asked = [path for _, path in fake.calls[before:]
                 if 'allocation_candidates' in path]  # fmt: skip
    assert len(asked) == 1


@pytest.mark.parametrize('kind', ['required', 'forbidden'])
def test_a_trait_that_changed_gives_no_wrong_placement(
    store, fake, provider, kind, caplog
):
    right, wrong = ({GOLD}, set()) if kind == 'required' else (set(), {GOLD})
    other = add_host(store, fake)
    with store.engine.begin() as conn:
        conn.execute(sa.update(schema.hosts).values(cell_uuid='c'))
    fake.traits = {provider: right, other: right}
    (refused_vm,) = new()
    caplog.set_level(logging.INFO)
    with followed(store, fake) as running:
        fake.traits = {provider: wrong, other: right}
        answers = [
            running.select_destinations(gold(each, kind)) for each in new(4)
        ]
        for answer in answers:
            (placed,) = answer.result(LIMIT_S).placements
            assert placed.selected.uuid == other
        fake.traits = {provider: wrong, other: wrong}
        with pytest.raises(errors.NoValidHost) as raised:
            running.select_destinations(gold(refused_vm, kind)).result(LIMIT_S)
    why = f'{"lacks" if kind == "required" else "has"} {GOLD}'
    assert why in str(raised.value)
    assert f'the placement service says that it {why}' in caplog.text
    assert refused_vm not in fake.allocations
    assert {*map(tuple, fake.allocations.values())} == {(other,)}


def test_equal_refusals_are_looked_up_together_and_hold_up_nobody(
    store, fake, provider, monkeypatch
):
    """However slow the service is to answer what is impossible."""
    read, running_now, most = fake.read, Counter(), Counter()
    others_are_placed = threading.Event()

    def slow(path: str, query: Any) -> Any:
        asked = query.get('resources', '')
        if path == '/allocation_candidates' and 'MEMORY' in asked:
            running_now[asked] += 1
            most[asked] = max(most[asked], running_now[asked])
            most['calls'] += 1
            assert others_are_placed.wait(LIMIT_S)
            running_now[asked] -= 1
        return read(path, query)

    (taken,) = new()
    with followed(store, fake) as running:
        running.select_destinations(
            request(taken, amounts={'VCPU': 60})
        ).result(LIMIT_S)
        monkeypatch.setattr(fake, 'read', slow)
        refusals = []
        for number in range(100):
            refusals.append(running.select_destinations(whole_host(*new())))
            if not number % 20:
                running.select_destinations(
                    request(*new(), amounts={'MEMORY_MB': 1})
                ).result(LIMIT_S)
            time.sleep(0.005)
        others_are_placed.set()
        for refusal in refusals:
            with pytest.raises(errors.NoValidHost, match=r'lacks 6\d '):
                refusal.result(LIMIT_S)
    assert most.pop('calls') <= 4
    assert {*most.values()} == {1}
