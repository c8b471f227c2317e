"""Daemons are killed while they decide: their recordings are true still."""

from __future__ import annotations

import contextlib
import random
import threading
import time

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.factory import engine_config
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from scheduler_service.store.records import playback, recordings
from tests.support.databases import ready_database
from tests.support.documents import CONTEXT
from tests.support.processes import on_topic
from tests.support.services import new_conf

import oslo_messaging  # isort: skip

pytestmark = [pytest.mark.broker, pytest.mark.db, pytest.mark.slow]
KILLS = 2
# Every few of these find no host, and some lose their claim to the other.
FLAVORS = [{'vcpus': 1, 'memory_mb': memory} for memory in (99, 2000, 9000)]


def ask(client, stopping, rng):
    """Have instances placed and released, until it is said to stop."""
    while not stopping.is_set():
        request = {'flavor': rng.choice(FLAVORS), 'num_instances': 2}
        # A refusal is lost where its daemon is killed before the reply.
        with contextlib.suppress(
            errors.SchedulerError, oslo_messaging.MessagingTimeout
        ):
            answer = client.select_destinations(CONTEXT, request)
            uuids = [each['instance_uuid'] for each in answer['placements']]
            client.release(CONTEXT, uuids)


def test_what_killed_daemons_recorded_gives_what_they_decided(
    launch, connect, rabbitmq, postgresql, topic
):
    database = ready_database(postgresql[1])

    def start():
        return launch(database, rabbitmq[1], on_topic(topic))

    running = [start(), start()]
    for each in running:
        each.wait_for('Ready:')
    stopping = threading.Event()
    callers = [
        threading.Thread(
            target=ask,
            args=(
                connect(rabbitmq[1], topic),
                stopping,
                random.Random(random.random()),
            ),
        )
        for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for number in range(KILLS):
        time.sleep(0.3 + random.random())
        running[number % 2].popen.kill()
        running[number % 2] = start()
        running[number % 2].wait_for('Ready:')
    time.sleep(0.5)
    stopping.set()
    for caller in callers:
        caller.join()
    for each in running:
        assert each.end() == 0
    store = Store.connect(database)
    with store.reading() as conn:
        assert [
            each.fault
            for each in playback.check_recordings(conn)
            if each.fault
        ] == []
        runs = {each.run for each in recordings.stretches(conn)}
        assert len(runs) == 2 + KILLS
        assert judged(conn) == {'', 'NoValidHost'}
    store.dispose()


def judged(conn):
    """Judge some decisions on the hosts as of then; return their errors."""
    pipeline = engine_config(new_conf()).hosts
    columns = schema.decisions.c
    place = sa.select(columns.run, columns.block, columns.place)
    rows = conn.execute(place.where(columns.run.is_not(None))).all()
    assert len(rows) > 50
    found = set()
    for row in random.sample(rows, 50):
        snapshot = playback.snapshot_of(conn, *row)
        table, request, entry = (
            snapshot.table,
            snapshot.request,
            snapshot.entry,
        )
        found.add(entry.error)
        mask = pipeline.filter_hosts(table, request)
        ranking = pipeline.weigh_hosts(table, mask, request)
        if entry.rows:
            # Where another daemon was faster, earlier turns placed the first.
            row = entry.rows[entry.earlier]
            assert row in ranking.best(2**entry.attempt)
        elif entry.error:
            assert ranking is None
    return found
