"""A stage of a plug-in: it reserves an address for each claim."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.factory import build, engine_config
from scheduler_service.model import documents
from scheduler_service.scheduler import Scheduler
from scheduler_service.store import schema
from scheduler_service.store.claims import stage_records
from scheduler_service.store.connection import Store
from scheduler_service.store.workers import stage_undoer
from tests.rigs import address_kills
from tests.rigs.address_service import AddressService
from tests.support.databases import migrated_database
from tests.support.documents import SMALL
from tests.support.services import new_conf
from tests.support.stores import HOSTS, claim_state, import_two_hosts
from tests.support.tcp_proxy import Mode, through_proxy
from tests.support.waiting import LIMIT_S, wait_until

AWAY_S = 5.0
STAGES = (f'{address_kills.STAGE} after=claim',)


@pytest.fixture
def addresses() -> Iterator[AddressService]:
    service = AddressService()
    with service.running():
        yield service


@pytest.fixture(params=['sqlite', pytest.param('postgresql', marks=[
    pytest.mark.db
])])  # fmt: skip
def store(make_store: Any, request: pytest.FixtureRequest) -> Any:
    made = make_store(request.param)
    import_two_hosts(made)
    return made


@pytest.fixture
def conf_of(store: Any, addresses: AddressService) -> Callable[..., Any]:
    """Give a function that returns a configuration with stages."""
    url = store.engine.url.render_as_string(hide_password=False)
    return lambda *stages: new_conf(
        database__connection=url,
        scheduler__stages=[*stages],
        filter_scheduler__plugin_options={'address_url': addresses.url},
    )


@pytest.fixture
def start(
    store: Any, conf_of: Callable[..., Any]
) -> Iterator[Callable[..., Scheduler]]:
    """Give a function that starts an engine, with the stage unless said."""
    made: list[Scheduler] = []

    def started(*stages: str) -> Scheduler:
        made.append(build(conf_of(*(stages or STAGES)), store))
        assert made[-1].start()
        return made[-1]

    yield started
    for one in made:
        one.stop()


def select(
    engine: Scheduler, *uuids: str, **how: Any
) -> tuple[list[str], Any]:
    """Return instances, and the future of their hosts."""
    vms = list(uuids) or [str(uuid.uuid4())]
    request = documents.request(
        {'flavor': SMALL, 'instance_uuids': vms, 'num_instances': len(vms)}
    )
    return vms, engine.select_destinations(request, **how)


def placed(engine: Scheduler, *uuids: str) -> set[tuple[str, str]]:
    """Place instances; return the host of each."""
    _, answer = select(engine, *uuids)
    return {
        (made.selected.host, made.instance_uuid)
        for made in answer.result(LIMIT_S).placements
    }


def records(store: Any) -> list[Any]:
    with store.reading() as conn:
        return list(conn.execute(sa.select(schema.stage_records)))


def test_an_address_is_there_with_the_answer_and_gone_after_the_release(
    start, addresses, store
):
    engine = start()
    one, two = str(uuid.uuid4()), str(uuid.uuid4())
    made = placed(engine, one, two)
    assert addresses.addresses.keys() == made
    assert {row.stage for row in records(store)} == {'AddressStage'}
    engine.release([one]).result(LIMIT_S)
    wait_until(lambda: {vm for _, vm in addresses.addresses} == {two})
    wait_until(lambda: len(records(store)) == 1)
    # The record lives as long as the claim, also once the host has it.
    engine.confirm([two]).result(LIMIT_S)
    engine.release([two]).result(LIMIT_S)
    wait_until(lambda: not addresses.addresses and not records(store))


def test_a_host_that_is_refused_is_left_out(start, addresses, store):
    engine = start()
    ((first, vm),) = placed(engine)
    addresses.full.add(first)
    ((second, other),) = placed(engine)
    assert first != second
    assert addresses.addresses.keys() == {(first, vm), (second, other)}
    addresses.full.add(second)
    _, answer = select(engine)
    assert isinstance(answer.exception(LIMIT_S), errors.NoValidHost)
    wait_until(lambda: len(records(store)) == 2)


def test_nothing_is_claimed_while_the_service_is_down(start, addresses, store):
    engine = start()
    addresses.is_down = True
    (vm,), answer = select(engine)
    failed = answer.exception(LIMIT_S)
    assert isinstance(failed, errors.StageFailed)
    assert failed.facts['stage'] == 'AddressStage'
    assert claim_state(store, vm) is None
    addresses.is_down = False
    # The same instance is placed once the service is back.
    made = placed(engine, vm)
    assert addresses.addresses.keys() == made


def test_a_call_that_is_carried_out_after_its_failure_is_undone(
    start, addresses, store, monkeypatch
):
    module = address_kills.STAGE.rpartition('.')[0]
    monkeypatch.setattr(f'{module}.TIMEOUT_S', 0.3)
    engine = start()
    addresses.slow_s = 1.0
    _, answer = select(engine)
    assert isinstance(answer.exception(LIMIT_S), errors.StageFailed)
    addresses.slow_s = 0.0
    wait_until(lambda: 'PUT' in {method for method, _ in addresses.calls})
    wait_until(lambda: not addresses.addresses)
    # No call may be carried out any more before the record goes.
    assert records(store)


def test_a_service_that_answers_twice_mixes_no_answers_up(start, addresses):
    engine = start()
    addresses.twice = True
    made = set()
    for _ in range(5):
        made |= placed(engine)
    assert addresses.addresses.keys() == made
    engine.release([vm for _, vm in made]).result(LIMIT_S)
    wait_until(lambda: not addresses.addresses)


def test_a_caller_that_went_meanwhile_keeps_no_address(
    start, addresses, store
):
    engine = start()
    addresses.slow_s = 0.5
    addresses.full = {*HOSTS}
    (vm,), answer = select(engine, deadline=time.monotonic() + 0.3)
    assert isinstance(answer.exception(LIMIT_S), errors.TooLate)
    assert claim_state(store, vm) is None
    wait_until(lambda: not addresses.addresses)


def test_a_move_has_an_address_of_its_own_until_it_is_dropped(
    start, addresses
):
    engine = start()
    ((host, vm),) = placed(engine)
    engine.confirm([vm]).result(LIMIT_S)
    _, answer = select(engine, vm, move=True)
    (made,) = answer.result(LIMIT_S).placements
    assert addresses.addresses.keys() == {
        (host, vm), (made.selected.host, vm),
    }  # fmt: skip
    engine.drop_moves([vm]).result(LIMIT_S)
    wait_until(lambda: addresses.addresses.keys() == {(host, vm)})


def test_an_instance_without_amounts_keeps_its_address(start, addresses):
    engine = start()
    vm = str(uuid.uuid4())
    request = documents.request({'flavor': {}, 'instance_uuids': [vm]})
    engine.select_destinations(request).result(LIMIT_S)
    time.sleep(2.5)
    assert [one for _, one in addresses.addresses] == [vm]


def test_another_daemon_undoes_what_one_without_the_stage_released(
    start, addresses, conf_of, store
):
    made = placed(start())
    other = build(conf_of(), store)
    assert other.start()
    try:
        other.release([vm for _, vm in made]).result(LIMIT_S)
    finally:
        other.stop()
    wait_until(lambda: not addresses.addresses)


def test_a_reload_takes_stages_in_and_out(start, addresses, conf_of, store):
    engine = start()
    addresses.slow_s = 0.5
    came = threading.Event()
    addresses.on_phase = lambda *phase: came.set()
    _, answer = select(engine)
    assert came.wait(LIMIT_S)
    engine.check(engine_config(conf_of()))()
    # What was under way keeps what its stage made.
    (before,) = answer.result(LIMIT_S).placements
    kept = {(before.selected.host, before.instance_uuid)}
    without = placed(engine)
    assert addresses.addresses.keys() == kept
    engine.check(engine_config(conf_of(*STAGES)))()
    after = placed(engine)
    assert addresses.addresses.keys() == kept | after
    vms = [vm for _, vm in kept | without | after]
    engine.release(vms).result(LIMIT_S)
    wait_until(lambda: not addresses.addresses and not records(store))


def test_a_record_is_written_with_the_claim_before_a_thread_is_free(
    start, addresses, store, monkeypatch
):
    module, _, name = address_kills.STAGE.rpartition('.')
    monkeypatch.setattr(f'{module}.{name}.threads', 1)
    engine = start()
    going = threading.Event()
    came: list[str] = []

    def wait(method: str, phase: str) -> None:
        came.append(method)
        going.wait(LIMIT_S)

    addresses.on_phase = wait
    answers = [select(engine)[1] for _ in range(3)]
    try:
        wait_until(lambda: came)
        wait_until(lambda: len(records(store)) == 3)
        assert not any(answer.done() for answer in answers)
    finally:
        going.set()
    for answer in answers:
        answer.result(LIMIT_S)
    assert len(addresses.addresses) == 3


def test_ends_of_calls_are_recorded_while_a_stage_undoes(
    start, addresses, store, monkeypatch
):
    monkeypatch.setattr(stage_undoer, '_MAX_WAIT_S', 3 * LIMIT_S)
    engine = start()
    ((_, first),) = placed(engine)
    going = threading.Event()
    came: list[str] = []

    def wait(method: str, phase: str) -> None:
        came.append(method)
        if method == 'DELETE':
            going.wait(LIMIT_S)

    addresses.on_phase = wait
    engine.release([first]).result(LIMIT_S)
    try:
        wait_until(lambda: 'DELETE' in came)
        ((_, second),) = placed(engine)

        def is_made() -> bool:
            return any(
                row.instance_uuid == second and row.made_at
                for row in records(store)
            )

        wait_until(is_made)
        assert first in {row.instance_uuid for row in records(store)}
    finally:
        going.set()


def test_the_end_of_the_last_call_is_recorded_when_the_daemon_stops(
    start, addresses, store
):
    engine = start()
    placed(engine)
    engine.stop()
    (row,) = records(store)
    assert (bool(row.made_at), row.asked_at) == (True, None)


def test_who_undoes_waits_until_ends_are_recorded(
    start, addresses, store, monkeypatch
):
    engine = start()
    going, came, real = threading.Event(), [], stage_records.end_calls

    def wait(*args: Any) -> None:
        came.append(args)
        going.wait(LIMIT_S)
        real(*args)

    monkeypatch.setattr(stage_records, 'end_calls', wait)
    placed(engine)
    with ThreadPoolExecutor(1) as thread:
        try:
            wait_until(lambda: came)
            recorded = thread.submit(engine._undoer.record_ends)
            wait_until(recorded.running)
            assert not records(store)[0].made_at
            assert not recorded.done()
        finally:
            going.set()
        recorded.result(LIMIT_S)
        assert records(store)[0].made_at


def test_an_instance_goes_elsewhere_while_an_undo_may_yet_be_carried_out(
    start, addresses, store
):
    engine = start()
    ((host, vm),) = placed(engine)
    addresses.loses = 'DELETE'
    engine.release([vm]).result(LIMIT_S)
    wait_until(lambda: any(row.undone_until for row in records(store)))
    ((other, _),) = placed(engine, vm)
    # A late call for the first host takes nothing from the second.
    assert other != host
    assert (other, vm) in addresses.addresses


@pytest.mark.db
def test_a_record_goes_though_the_database_was_away_when_its_call_ended(
    addresses, postgresql
):
    database = migrated_database(postgresql[1])
    with through_proxy(database) as (proxy, proxied):
        store = Store.connect(proxied, max_pool_size=20)
        import_two_hosts(store)

        def cut(method: str, phase: str) -> None:
            if (method, phase) == ('PUT', 'done'):
                proxy.become(Mode.REFUSE)

        addresses.on_phase = cut
        conf = new_conf(
            database__connection=proxied,
            scheduler__stages=[*STAGES],
            filter_scheduler__plugin_options={'address_url': addresses.url},
        )
        engine = build(conf, store)
        assert engine.start()
        try:
            (vm,), answer = select(engine)
            wait_until(lambda: addresses.addresses)
            # The end was to be recorded long before this is over.
            until = time.monotonic() + AWAY_S
            wait_until(lambda: time.monotonic() > until)
            proxy.become(Mode.FORWARD)
            answer.result(LIMIT_S)
            engine.release([vm]).result(LIMIT_S)
            wait_until(lambda: not addresses.addresses)
            wait_until(lambda: not records(store))
        finally:
            engine.stop()
            store.dispose()
