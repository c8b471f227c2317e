"""Daemons killed, doubled and poisoned: the small form of benchmarks.faults.

The scenarios are those of ``benchmarks.faults``, with fewer of everything.
"""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.store import suspects
from scheduler_service.store.connection import Store
from tests import clouds, faults, servers
from tests.functional.conftest import CONTEXT, SMALL
from tests.functional.test_daemon import on, ready_store

pytestmark = [pytest.mark.functional, pytest.mark.broker, pytest.mark.db]
POISON = """
[filter_scheduler]
available_filters = tests.functional.poison.PoisonFilter
enabled_filters = PoisonFilter
"""


def test_a_message_that_ends_its_daemon_is_put_aside(
    connect, launch, rabbitmq, postgresql
):
    topic = f't{uuid.uuid4().hex[:8]}'
    database = ready_store(postgresql[1])
    extra = on(topic) + 'max_deliveries = 2\n' + POISON
    running = launch(database, rabbitmq[1], extra)
    running.wait_for('Ready:')
    asking = connect(rabbitmq[1], topic, timeout=100)
    asking.ping(CONTEXT)
    outcomes: list[Any] = []

    def ask(name: str) -> None:
        try:
            outcomes.append(
                asking.select_destinations(
                    CONTEXT, {'flavor': {**SMALL, 'memory_mb': 64,
                                         'name': name}},
                )
            )  # fmt: skip
        except errors.SchedulerError as error:
            outcomes.append(error.name)

    names = ['innocent'] * 10 + ['poison'] + ['innocent'] * 10
    threads = [threading.Thread(target=ask, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    deaths = 0
    while len(outcomes) < len(names):
        if running.popen.poll() is not None:
            assert running.popen.returncode == 9
            deaths += 1
            # It may meet its end before it says that it is ready.
            running = launch(database, rabbitmq[1], extra)
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    # Once as a fresh message, twice as one that came again.
    assert deaths == 3
    running.wait_for('is put aside')
    bad = [one for one in outcomes if not isinstance(one, dict)]
    assert bad == ['RequestPutAside']
    assert asking.ping(CONTEXT)['counters']['requests_quarantined'] == 1
    store = Store.connect(database)
    with store.reading() as conn:
        (kept,) = suspects.listing(conn)
        whole = suspects.show(conn, kept['message_id'])
    store.dispose()
    assert kept['method'] == 'select_destinations'
    asked = whole['message']['args']['request']
    assert asked['flavor']['name'] == 'poison'
    assert running.end() == 0


@pytest.mark.parametrize('kind', ['postgresql', 'mariadb'])
def test_nearly_full_hosts_are_never_promised_twice(kind, request, quorum_bus):
    database = request.getfixturevalue(kind)[1]
    with clouds.cloud(database, quorum_bus, daemons=2) as cloud:
        told = faults.nearly_full(cloud, hosts=20, callers=8, requests=300)
    assert told['placed'] == told['room']
    faults.check(told)


@pytest.mark.parametrize('kind', ['postgresql', 'mariadb'])
@pytest.mark.parametrize('policy', ['anti-affinity', 'affinity'])
def test_groups_hold_with_daemons_at_once(kind, policy, request, quorum_bus):
    database = request.getfixturevalue(kind)[1]
    with clouds.cloud(database, quorum_bus, daemons=2) as cloud:
        told = faults.groups(cloud, policy, groups=20, members=5, callers=8)
    faults.check(told)


def test_casts_are_answered_though_daemons_are_killed(quorum_bus, postgresql):
    with clouds.cloud(postgresql[1], quorum_bus, daemons=2) as cloud:
        told = faults.casts(cloud, 150, faults.killing(cloud, every=1.0))
    assert told['kills'] >= 1
    faults.check(told)


# See clouds.clean.
@pytest.mark.filterwarnings('ignore:unclosed <socket:ResourceWarning')
def test_casts_are_answered_though_the_broker_restarts(postgresql):
    with (
        servers.rabbitmq() as (server, bus),
        clouds.cloud(postgresql[1], bus, daemons=2) as cloud,
    ):
        again = faults.restarting(server, times=1)
        told = faults.casts(cloud, 100, again)
    faults.check(told)


def test_casts_are_answered_though_the_database_restarts(quorum_bus):
    with (
        servers.postgresql() as (server, base),
        clouds.cloud(base, quorum_bus, daemons=2) as cloud,
    ):
        again = faults.restarting(server, times=1)
        told = faults.casts(cloud, 100, again)
    faults.check(told)


# See clouds.clean.
@pytest.mark.filterwarnings('ignore:unclosed <socket:ResourceWarning')
def test_a_full_disk_of_the_broker_is_said_and_survived(postgresql):
    with (
        servers.rabbitmq() as (server, bus),
        clouds.cloud(postgresql[1], bus, daemons=1) as cloud,
    ):
        told = faults.full_disk(cloud, server, requests=20)
    assert told['said'] == 1
    faults.check(told)
