"""Decisions are written in bulk, and the newest are kept."""

from __future__ import annotations

import logging
from concurrent.futures import Future

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.engine.messages import NO_MESSAGE
from scheduler_service.settings import EngineOptions
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from scheduler_service.store.records import decision_list, decisions
from scheduler_service.store.records.decision_list import DecisionFilter
from scheduler_service.store.workers import decision_recorder
from scheduler_service.store.workers.decision_recorder import (
    DecisionRecorder,
    LogLine,
)
from tests.support.waiting import LIMIT_S, wait_until


def decision(number: int) -> decisions.Decision:
    return decisions.Decision(
        f'req-{number}', 'select_destinations', 'chosen', {}
    )


def recorded(store: Store) -> list[str]:
    """Return the request ids of all decisions, newest first."""
    with store.reading() as conn:
        return [
            one.request_id
            for one in decision_list.search(conn, DecisionFilter())
        ]


def test_decisions_are_written_when_flushed(store):
    recorder = DecisionRecorder(store, EngineOptions(decisions_kept=100))
    for number in range(3):
        recorder.put(decision(number))
    assert recorded(store) == []
    recorder.flush()
    assert sorted(recorded(store)) == ['req-0', 'req-1', 'req-2']


def test_all_decisions_are_written_when_many_wait(store):
    recorder = DecisionRecorder(store, EngineOptions(decisions_kept=5000))
    for number in range(1200):
        recorder.put(decision(number))
    recorder.flush()
    assert len(recorded(store)) == 1200


def test_oldest_decisions_are_deleted_when_more_are_written_than_kept(store):
    recorder = DecisionRecorder(store, EngineOptions(decisions_kept=10))
    for number in range(30):
        recorder.put(decision(number))
        recorder.flush()
    left = recorded(store)
    assert len(left) <= 10 + 1
    assert 'req-29' in left
    assert 'req-0' not in left


def test_other_decisions_are_kept_when_one_is_repeated_for_long(store):
    recorder = DecisionRecorder(store, EngineOptions(decisions_kept=10))
    for number in range(5):
        recorder.put(decision(number))
    refused = 'req-gang', 'pod_filter', 'NoValidHost', {'error': {'facts': {}}}
    for _ in range(40):
        recorder.put(decisions.Decision(*refused))
        recorder.flush()
    recorder.put(decision(5))
    recorder.put(decision(6))
    recorder.flush()
    assert recorded(store)[:3] == ['req-6', 'req-5', 'req-gang']
    assert len(recorded(store)) == 8
    with store.reading() as conn:
        (shown,) = decisions.show(conn, 'req-gang')
    assert shown['times'] == 40


def test_nothing_is_written_when_none_are_kept(store):
    recorder = DecisionRecorder(store, EngineOptions(decisions_kept=0))
    recorder.put(decision(1))
    recorder.flush()
    assert recorded(store) == []


def test_decisions_are_written_by_the_thread_when_it_runs(store):
    recorder = DecisionRecorder(store, EngineOptions(decisions_kept=100))
    recorder.start()
    recorder.put(decision(1))
    wait_until(lambda: recorded(store) == ['req-1'])
    recorder.put(decision(2))
    recorder.stop(LIMIT_S)
    assert sorted(recorded(store)) == ['req-1', 'req-2']


def test_decisions_wait_in_order_when_the_database_does_not_answer(make_store):
    store = make_store(own=True)
    recorder = DecisionRecorder(store, EngineOptions(decisions_kept=100))
    for number in range(3):
        recorder.put(decision(number))
    with store.engine.begin() as conn:
        conn.exec_driver_sql('ALTER TABLE decisions RENAME TO away')
    with pytest.raises(errors.StoreUnavailable):
        recorder.flush()
    with store.engine.begin() as conn:
        conn.exec_driver_sql('ALTER TABLE away RENAME TO decisions')
    recorder.flush()
    assert sorted(recorded(store)) == ['req-0', 'req-1', 'req-2']
    with store.reading() as conn:
        rows = conn.execute(
            schema.decisions.select().order_by(schema.decisions.c.id)
        )
        assert [row.request_id for row in rows] == ['req-0', 'req-1', 'req-2']


def test_lines_are_written_when_the_database_does_not_answer(
    make_store, caplog
):
    store = make_store(own=True)
    caplog.set_level(logging.INFO, decision_recorder.__name__)
    recorder = DecisionRecorder(store, EngineOptions(decisions_kept=100))
    with store.engine.begin() as conn:
        conn.exec_driver_sql('ALTER TABLE decisions RENAME TO away')
    results = Future()
    line = LogLine('schedule_many', None, 'p', NO_MESSAGE)
    recorder.follow(results, line)
    recorder.put(decision(1))
    results.set_result([])
    with pytest.raises(errors.StoreUnavailable):
        recorder.flush()
    (line,) = caplog.messages
    assert line.startswith('schedule_many: 0 requests; ')
    assert line.endswith('request -, project p')


def test_decisions_are_deleted_in_small_steps(store, monkeypatch):
    monkeypatch.setattr(decision_recorder, '_PRUNE_STEP', 4)
    write_of_all = DecisionRecorder(store, EngineOptions(decisions_kept=1000))
    for number in range(40):
        write_of_all.put(decision(number))
    write_of_all.flush()
    deleted = []
    listen = sa.event.listens_for(store.engine, 'after_cursor_execute')

    @listen
    def count(conn, cursor, statement, *more):
        if statement.startswith('DELETE FROM decisions'):
            deleted.append(cursor.rowcount)

    few = DecisionRecorder(store, EngineOptions(decisions_kept=10))
    for number in range(40, 42):
        few.put(decision(number))
    few.flush()
    assert recorded(store) == [f'req-{n}' for n in range(41, 31, -1)]
    assert sum(deleted) == 32
    assert max(deleted) == 4


def test_old_decisions_are_deleted_by_the_thread(store, monkeypatch):
    monkeypatch.setattr(decision_recorder, '_PRUNE_CHANGES_EVERY_S', 0.0)
    table = schema.decisions
    recorder = DecisionRecorder(
        store, EngineOptions(decisions_kept=1000, decisions_max_age=3600.0)
    )
    for number in range(3):
        recorder.put(decision(number))
    recorder.flush()
    old = sa.update(table).where(table.c.request_id != 'req-2')
    with store.engine.begin() as conn:
        conn.execute(old.values(created_at=table.c.created_at - 3700))
    recorder.start()
    wait_until(lambda: recorded(store) == ['req-2'])
    recorder.stop(LIMIT_S)
