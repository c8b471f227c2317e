"""A message that ends the daemon which handles it."""

import threading
import time
import uuid
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.store.connection import Store
from scheduler_service.store.records import quarantine
from tests.support.databases import ready_database
from tests.support.documents import (
    CONTEXT,
    SMALL,
)
from tests.support.waiting import LIMIT_S

pytestmark = [pytest.mark.broker, pytest.mark.db, pytest.mark.slow]

POISON = """
[filter_scheduler]
available_filters = tests.support.poison_filter.PoisonFilter
enabled_filters = PoisonFilter
"""


def test_message_is_quarantined_when_it_ends_its_daemon(
    connect, launch, rabbitmq, postgresql
):
    topic = f't{uuid.uuid4().hex[:8]}'
    database = ready_database(postgresql[1])
    extra = f'[scheduler]\ntopic = {topic}\n{POISON}'
    running = launch(database, rabbitmq[1], extra)
    running.wait_for('Ready:')
    asking = connect(rabbitmq[1], topic, timeout=LIMIT_S)
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
            assert running.popen.wait() == 9
            deaths += 1
            # It may meet its end before it says that it is ready.
            running = launch(database, rabbitmq[1], extra)
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    # Once as a fresh message, five times as one that came again.
    assert deaths == 6
    running.wait_for('is quarantined')
    bad = [outcome for outcome in outcomes if not isinstance(outcome, dict)]
    assert bad == ['RequestQuarantined']
    assert asking.ping(CONTEXT)['counters']['requests_quarantined'] == 1
    store = Store.connect(database)
    with store.reading() as conn:
        (kept,) = quarantine.listing(conn)
        whole = quarantine.show(conn, kept['message_id'])
    store.dispose()
    assert kept['method'] == 'select_destinations'
    asked = whole['message']['args']['request']
    assert asked['flavor']['name'] == 'poison'
    assert running.end() == 0
