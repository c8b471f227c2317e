"""A database on a full disk: it is read, takes small writes, and no claims."""

import threading
import time
import uuid
from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from tests.support import servers
from tests.support.documents import CONTEXT
from tests.support.processes import on_topic
from tests.support.stores import import_inventory
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.db, pytest.mark.slow]

# Enough to need room that the pages of an empty table do not have.
REQUEST = {'flavor': {'memory_mb': 1}, 'num_instances': 50}
CALLERS = 12
LIMIT = 4
QUORUM = """
[oslo_messaging_rabbit]
amqp_durable_queues = true
rabbit_quorum_queue = true
rabbit_transient_quorum_queue = true
"""


@pytest.fixture
def limited_bus(rabbitmq):
    """A virtual host where a policy limits deliveries of quorum queues."""
    url = servers.new_vhost(*rabbitmq)
    servers.evaluate(
        rabbitmq[0],
        f'rabbit_policy:set(<<"{url.rpartition("/")[2]}">>, <<"limit">>, '
        f'<<".*">>, [{{<<"delivery-limit">>, {LIMIT}}}], 0, <<"queues">>, '
        '<<"guest">>)',
    )
    return url


@pytest.mark.parametrize(
    ('kind', 'daemons', 'seconds'),
    [
        ('postgresql', 2, 13),
        ('mariadb', 2, 8),
        ('sqlite', 1, 8),
    ],
)
def test_every_caller_is_answered_when_the_disk_was_full(
    kind, daemons, seconds, connect, launch, database_on_disk, limited_bus
):
    disk, url = database_on_disk(kind)
    store = Store.connect(url)
    import_inventory(store, {'hosts': [{'host': 'a', 'memory_mb': 999_999}]})
    topic = f't{uuid.uuid4().hex[:8]}'
    running = [
        launch(url, limited_bus, on_topic(topic) + QUORUM)
        for _ in range(daemons)
    ]
    for one in running:
        one.wait_for('Ready:')
    # MariaDB ends where a row of several pages, such as a daemon's own, is
    # rolled back on a full disk.
    wait_until(lambda: registered(store) == daemons)
    store.dispose()
    asking = connect(limited_bus, topic, timeout=LIMIT_S, durable=True)
    results: Counter[str] = Counter()

    def ask() -> None:
        try:
            answer = asking.select_destinations(CONTEXT, REQUEST)
            results['answered'] += len(answer['placements']) == 50
        except Exception as error:
            results[type(error).__name__] += 1

    threads = [threading.Thread(target=ask) for _ in range(CALLERS)]
    disk.fill()
    try:
        for thread in threads:
            thread.start()
        end = time.monotonic() + seconds
        for one in running:
            one.wait_for('The disk of the database is full')
        said = told(asking, end)
        # It is found out once that nothing works, and said from then on.
        assert said == ['away'] * len(said)
        assert not results
    finally:
        disk.free()
    for thread in threads:
        thread.join(LIMIT_S)
    assert results == {'answered': CALLERS}
    back = 'Database reachable again'
    wait_until(lambda: all(one.count(back) == 1 for one in running))
    for one in running:
        assert one.count('Degraded: database unreachable') == 1
        assert one.end() == 0


def registered(store: Store) -> int:
    """Return how many daemons have their row in the database."""
    with store.reading() as conn:
        return len(conn.execute(sa.select(schema.daemons.c.id)).all())


def told(asking: Any, end: float) -> list[str]:
    """Return what pings say of the database until a monotonic time."""
    said = []
    while time.monotonic() < end:
        said.append(asking.ping(CONTEXT)['database'])
        time.sleep(0.2)
    return said
