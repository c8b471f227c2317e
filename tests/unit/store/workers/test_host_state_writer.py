"""HostStateWriter on SQLite: what a flush writes, keeps and rejects."""

import logging
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.model import Instance, documents
from scheduler_service.settings import EngineOptions
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from scheduler_service.store.records import host_reports
from scheduler_service.store.workers import host_state_writer
from scheduler_service.store.workers.host_state_writer import (
    DeleteAggregate,
    DeleteInstances,
    HostStateWriter,
    UpdateInstances,
)
from tests.support.waiting import LIMIT_S

INVENTORY = {
    'hosts': [
        {'host': 'a', 'vcpus': 8, 'memory_mb': 1024, 'local_gb': 10},
        {'host': 'b', 'vcpus': 8, 'memory_mb': 1024, 'local_gb': 10},
    ],
    'aggregates': [{'id': 7, 'hosts': ['a']}],
}
FLAVOR = {'vcpus': 1, 'memory_mb': 1, 'root_gb': 1}


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def writer(store, health, import_inventory) -> HostStateWriter:
    """A writer whose thread does not run: a test flushes it itself."""
    import_inventory(INVENTORY)
    return HostStateWriter(store, health, EngineOptions())


def hosts(store: Store) -> dict[str, str]:
    """Return host -> state."""
    table = schema.hosts
    with store.reading() as conn:
        found = conn.execute(sa.select(table.c.host, table.c.state))
        return {row.host: row.state for row in found}


def instances(store: Store) -> dict[str, str]:
    """Return uuid -> host."""
    table = schema.instances
    with store.reading() as conn:
        found = conn.execute(sa.select(table.c.uuid, table.c.host))
        return {row.uuid: row.host for row in found}


def update(host: str, instance: str) -> UpdateInstances:
    return UpdateInstances(
        instances=[
            documents.parse(
                {'uuid': instance, 'host': host, 'flavor': FLAVOR}, Instance
            )
        ]
    )


def test_refused_reports_are_logged_counted_and_stored(
    store, writer, health, caplog, tmp_path
):
    away = Store.connect(f'sqlite:///{tmp_path}/no/such/folder/x.sqlite')
    lost = HostStateWriter(away, health, EngineOptions())
    for one in (writer, lost):
        one.refuse('a', 'vcpus: expected an integer')
        one.refuse('a', 'stats: expected an object')
        one.refuse('', 'host: required, but absent')
    with pytest.raises(errors.StoreUnavailable):
        lost.flush()
    away.dispose()
    # They stay buffered, and are counted together with newer ones.
    lost._store = store
    lost.refuse('a', 'metrics: expected a list')
    writer.flush()
    lost.flush()
    with store.reading() as conn:
        stored = host_reports.refusals_of(conn, 'a')
        assert host_reports.refusals_of(conn, '') is None
    assert (stored.refused, stored.reason) == (5, 'metrics: expected a list')
    assert health.counters() == {
        'host_reports_rejected': 7,
    }
    assert caplog.messages[0] == (
        'Host report rejected: a: vcpus: expected an integer'
    )


def test_a_heartbeat_marks_a_host_up(store, writer, health, caplog):
    caplog.set_level(logging.INFO, 'scheduler_service.store.workers')
    store.write(
        lambda one: one.conn.execute(
            sa.update(schema.hosts).values(state='down')
        )
    )
    assert writer.heartbeat(['a']) == 1
    writer.flush()
    assert hosts(store) == {'a': 'up', 'b': 'down'}
    assert health.counters()['hosts_marked_up'] == 1
    assert 'Hosts marked up: 1; heartbeats came again' in caplog.messages


def test_the_future_of_an_event_holds_what_changed(store, writer):
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    added = [
        writer.submit(update('a', first)),
        writer.submit(update('b', second)),
    ]
    removed = writer.submit(DeleteInstances(host='a', uuids=[first]))
    aggregate = writer.submit(DeleteAggregate(id=7))
    assert not removed.done()
    writer.flush()
    # Updates that follow each other are written as one.
    assert [one.result(0) for one in added] == [2, 2]
    assert removed.result(0) == [first]
    assert aggregate.result(0) == 1
    assert instances(store) == {second: 'b'}


def test_a_rejected_event_costs_no_other_event(store, writer, caplog):
    good, bad = str(uuid.uuid4()), str(uuid.uuid4())
    broken = update('a', bad)
    broken.instances[0].host = None
    kept = writer.submit(update('a', good))
    rejected = writer.submit(broken)
    writer.flush()
    assert kept.result(0) == 1
    assert isinstance(rejected.exception(0), errors.SchedulerError)
    assert instances(store) == {good: 'a'}
    assert caplog.messages[-1].startswith('UpdateInstances rejected: ')
    assert 'instances.host' in caplog.messages[-1]


def test_what_could_not_be_written_stays_buffered(
    store, writer, health, tmp_path
):
    away = Store.connect(f'sqlite:///{tmp_path}/no/such/folder/x.sqlite')
    lost = HostStateWriter(away, health, EngineOptions())
    lost.report([documents.host_report({'host': 'c', 'vcpus': 1})])
    lost.heartbeat(['a'])
    event = update('a', str(uuid.uuid4()))
    lost.submit(event)
    with pytest.raises(errors.StoreUnavailable):
        lost.flush()
    assert not event.future.done()
    buffered = lost._buffer
    assert set(buffered.reports) == {('c', 'c')}
    assert buffered.heartbeats == {'a', 'c'}
    assert buffered.events == [event]
    away.dispose()


def test_too_much_is_refused(writer, monkeypatch):
    monkeypatch.setattr(host_state_writer, '_MAX_BUFFERED', 2)
    writer.heartbeat(['a', 'b'])
    with pytest.raises(errors.ServiceBusy) as caught:
        writer.heartbeat(['c'])
    assert caught.value.facts == {'waiting': 2}


def test_stop_writes_what_is_buffered(store, writer):
    writer.start()
    with ThreadPoolExecutor(4) as pool:
        futures = list(
            pool.map(
                lambda _: writer.submit(update('a', str(uuid.uuid4()))),
                range(40),
            )
        )
    writer.report([documents.host_report({'host': 'c'})])
    writer.stop(LIMIT_S)
    assert all(future.done() for future in futures)
    assert len(instances(store)) == 40
    assert 'c' in hosts(store)
    with pytest.raises(errors.ServiceBusy):
        writer.heartbeat(['a'])
