"""Sessions that are ended while the database works."""

import contextlib
import threading
import time
import uuid
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service import stages
from scheduler_service.factory import build
from scheduler_service.model import documents
from scheduler_service.store.connection import Store
from scheduler_service.store.workers import store_monitor
from scheduler_service.store.workers.store_monitor import Probe
from tests.rigs import address_kills
from tests.rigs.address_service import AddressService
from tests.support.databases import listens
from tests.support.documents import SMALL
from tests.support.engines import Message, select, start_engine, store_all
from tests.support.services import new_conf
from tests.support.stores import audit_findings, import_inventory
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.db
# Those at work last: what they do is done again in a session that stays.
_LIST = {
    'postgresql': 'SELECT pid FROM pg_stat_activity '
    'WHERE datname = current_database() AND pid <> pg_backend_pid() '
    "ORDER BY state IS DISTINCT FROM 'idle'",
    'mysql': 'SELECT id FROM information_schema.processlist '
    'WHERE db = DATABASE() AND id <> CONNECTION_ID() '
    "ORDER BY command <> 'Sleep'",
}
_END = {
    'postgresql': 'SELECT pg_terminate_backend({}, 5000)',
    'mysql': 'KILL {}',
}
_LOCK = "UPDATE counters SET value = value WHERE name = 'revision'"


def end_sessions(conn: sa.Connection) -> None:
    """End all sessions of a database but this one, one after the other."""
    kind = conn.dialect.name

    def numbers() -> list[int]:
        return [*conn.exec_driver_sql(_LIST[kind]).scalars()]

    for number in numbers():
        # It may be over by now, which MariaDB takes for an error.
        with contextlib.suppress(sa.exc.OperationalError):
            conn.exec_driver_sql(_END[kind].format(number))
        # MariaDB only tells the session to end; within a transaction the
        # list of PostgreSQL, which waits, does not change.
        if kind == 'mysql':
            wait_until(lambda number=number: number not in numbers())


@pytest.fixture(params=['postgresql', 'mariadb'])
def store(request: Any, make_store: Any) -> Store:
    """A store with hosts, on a database server."""
    store: Store = make_store(request.param)
    import_inventory(store)
    return store


@pytest.fixture
def operator(store: Store) -> Any:
    """A session of somebody else."""
    engine = sa.create_engine(store.engine.url)
    with engine.connect() as conn:
        yield conn
    engine.dispose()


@pytest.fixture
def probes(monkeypatch: Any) -> list[float]:
    """When probes had an answer, of which there are many."""
    monkeypatch.setattr(store_monitor, '_INTERVAL_S', 0.05)
    answered: list[float] = []
    ask = Probe.ask

    def noted(probe: Probe) -> None:
        ask(probe)
        answered.append(time.monotonic())

    monkeypatch.setattr(Probe, 'ask', noted)
    return answered


@pytest.fixture
def engine(store: Store, probes: list[float]) -> Any:
    """An engine that notes when it stops consuming."""
    running = start_engine(store)
    pauses: list[float] = []
    running.store_monitor.pause = lambda: pauses.append(time.monotonic())
    yield running
    running.stop()
    assert not pauses
    assert not audit_findings(store)


def use_sessions(engine: Any, probes: list[float]) -> None:
    """Return when each session has worked.

    One that is ended before its first answer counts as a lost database.
    """
    store_all(engine)
    # The first may have had its answer in a session that has ended since.
    known = len(probes) + 2
    wait_until(lambda: len(probes) >= known)


def test_requests_go_on_at_once_when_idle_sessions_are_ended(
    engine, operator, probes
):
    for _ in range(3):
        uuids = [str(uuid.uuid4())]
        use_sessions(engine, probes)
        end_sessions(operator)
        assert 'placements' in select(uuids).run(engine)
        use_sessions(engine, probes)
        end_sessions(operator)
        assert Message('release', (uuids,)).run(engine) == uuids


def test_claims_are_made_at_once_when_their_session_is_ended(
    engine, store, operator, probes
):
    for _ in range(3):
        use_sessions(engine, probes)
        with operator.begin():
            operator.exec_driver_sql(_LOCK)
            asked = select([str(uuid.uuid4())]).deliver(engine)
            wait_until(lambda: store.sessions.waits(0.1))
            end_sessions(operator)
        assert asked.result(LIMIT_S).placements


def test_database_that_ends_the_session_of_its_probe_is_not_lost(
    store, operator
):
    probe = Probe(store)
    probe.ask()
    end_sessions(operator)
    probe.ask()
    probe.close()


@pytest.fixture
def staged(store: Store) -> Any:
    """An engine with a stage of a plug-in, and its service."""
    addresses = AddressService()
    with addresses.running():
        conf = new_conf(
            database__connection=store.engine.url.render_as_string(
                hide_password=False
            ),
            scheduler__stages=[f'{address_kills.STAGE} after=claim'],
            filter_scheduler__plugin_options={'address_url': addresses.url},
        )
        running = build(conf, store)
        assert running.start()
        yield running, addresses
        running.stop()


def cut(store: Store, operator: sa.Connection, at: int) -> list[str]:
    """Have a stage's thread lose its session as it records what it does.

    :param at: the statement on its records before which it does
    :return: which gets that statement
    """
    seen: list[str] = []
    count = 0

    @listens(store, 'before_cursor_execute')
    def look(conn, cursor, statement, *_):
        nonlocal count
        thread = threading.current_thread().name
        if 'stage_records' in statement and thread.startswith('AddressStage'):
            count += 1
            if count == at:
                seen.append(statement)
                end_sessions(operator)

    return seen


def ask(vm: str) -> Any:
    return documents.request({'flavor': SMALL, 'instance_uuids': [vm]})


@pytest.mark.parametrize('at', [1, 2])
@pytest.mark.parametrize('moves', [True, False])
def test_a_stage_goes_on_when_its_session_is_ended(
    staged, store, operator, monkeypatch, moves, at
):
    """Of a move, and of what was recorded too long ago."""
    engine, addresses = staged
    vm = str(uuid.uuid4())
    if moves:
        engine.select_destinations(ask(vm)).result(LIMIT_S)
        engine.confirm([vm]).result(LIMIT_S)
    else:
        monkeypatch.setattr(stages, '_RECORDED_S', -1.0)
    lost = cut(store, operator, at)
    answer = engine.select_destinations(ask(vm), move=moves)
    (made,) = answer.result(LIMIT_S).placements
    assert len(lost) == 1
    assert (made.selected.host, vm) in addresses.addresses
    assert not audit_findings(store)
