"""A daemon is killed when its answer arrives, before the acknowledgement."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import kombu
import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from tests.support import servers
from tests.support.databases import ready_database
from tests.support.documents import CONTEXT, SMALL
from tests.support.processes import on_topic
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.db, pytest.mark.slow]
# As often as it may take to kill a daemon before it acknowledges.
_ATTEMPTS = 5
# One instance of this flavor fills a host.
LARGE = {'vcpus': 1, 'memory_mb': 8192}


@pytest.fixture
def restart(launch, rabbitmq, postgresql, topic):
    """Give a database, and a function that starts a daemon on it."""
    database = ready_database(postgresql[1])

    def start():
        running = launch(database, rabbitmq[1], on_topic(topic))
        running.wait_for('Ready:')
        return running

    return database, start


@pytest.fixture
def client(connect, rabbitmq, topic):
    return connect(rabbitmq[1], topic)


def claimed(database: str) -> set[str]:
    """Return the instances that hold a claim."""
    store = Store.connect(database)
    held = schema.allocations.c.consumer_uuid
    with store.reading() as conn:
        found = {*conn.execute(sa.select(held)).scalars()}
    store.dispose()
    return found


def redelivered(client) -> int:
    """Wait for a daemon to answer; return how many messages it got again."""
    counters = client.ping(CONTEXT)['counters']
    return int(counters.get('requests_redelivered', 0))


def test_nothing_is_claimed_when_the_caller_released_it(restart, client):
    database, start = restart
    for _ in range(_ATTEMPTS):
        running = start()
        wanted = str(uuid.uuid4())
        request = {'instance_uuids': [wanted], 'flavor': SMALL}
        client.select_destinations(CONTEXT, request)
        running.popen.kill()
        running.popen.wait()
        with ThreadPoolExecutor(1) as caller:
            released = caller.submit(client.release, CONTEXT, [wanted])
            running = start()
        again = redelivered(client)
        # What was delivered again may still be under way.
        assert running.end() == 0
        assert released.result() == [wanted]
        assert claimed(database) == set()
        if again:
            return
    pytest.fail('no message was delivered again')


def test_a_refused_request_is_not_delivered_again(
    restart, client, rabbitmq, topic
):
    database, start = restart
    running = start()
    filled = {'num_instances': 4, 'flavor': LARGE}
    client.select_destinations(CONTEXT, filled)
    unacknowledged = (
        f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, '
        f'<<"{topic}">>)), [{{_, N}}] = rabbit_amqqueue:info(Q, '
        '[messages_unacknowledged]), N'
    )
    wait_until(lambda: servers.evaluate(rabbitmq[0], unacknowledged) == '0')
    with pytest.raises(errors.NoValidHost):
        client.select_destinations(CONTEXT, {'flavor': LARGE})
    running.popen.kill()
    running.popen.wait()
    url = rabbitmq[1].replace('rabbit://', 'amqp://')
    with kombu.Connection(url) as conn:
        look = partial(conn.channel().queue_declare, topic, passive=True)
        wait_until(lambda: not look().consumer_count)
        assert look().message_count == 0
    assert len(claimed(database)) == 4
