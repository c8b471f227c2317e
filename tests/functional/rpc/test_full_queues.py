"""Reply queues that are full and refuse: nobody else waits for them.

Whoever did would wait until a reply is given up, which is longer than a call
may take here.
"""

import contextlib
import json
import signal
import time
import uuid
from collections.abc import Iterator
from typing import Any

import kombu
import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from tests.support.documents import CONTEXT, OWNER, SMALL
from tests.support.stores import import_inventory
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.broker
TINY = {'vcpus': 0, 'memory_mb': 1}
FULL = {'x-max-length': 1, 'x-overflow': 'reject-publish'}


@pytest.fixture
def service(make_service):
    return make_service('rabbit')


@pytest.fixture
def channel(service) -> Iterator[Any]:
    url = service.url.replace('rabbit://', 'amqp://')
    with contextlib.closing(kombu.Connection(url)) as connection:
        yield connection.channel()


def full_queue(channel: Any, exchange: str = '') -> str:
    """Declare a queue that has one message and refuses the next."""
    name = f'full-{uuid.uuid4().hex}'
    channel.queue_declare(
        name, auto_delete=False, durable=False, arguments=FULL
    )
    if exchange:
        channel.queue_bind(name, exchange, name)
    kombu.Producer(channel).publish('x', routing_key=name)
    return name


def call_with_reply_to(channel: Any, topic: str, queue: str) -> str:
    """Send a call of an instance whose reply goes to *queue*."""
    instance = str(uuid.uuid4())
    request = {'flavor': TINY, 'instance_uuids': [instance]}
    message = {
        'method': 'select_destinations',
        'version': '1.0',
        'args': {'request': request},
        '_msg_id': uuid.uuid4().hex,
        '_reply_q': queue,
        '_unique_id': uuid.uuid4().hex,
        **{f'_context_{key}': value for key, value in CONTEXT.items()},
    }
    kombu.Producer(channel).publish(
        {'oslo.version': '2.0', 'oslo.message': json.dumps(message)},
        exchange='openstack',
        routing_key=topic,
    )
    return instance


def placed(service: Any, instance: str) -> bool:
    with service.store.reading() as conn:
        found = conn.exec_driver_sql(
            'SELECT count(*) FROM allocations '
            f"WHERE consumer_uuid = '{instance}'"
        )
        return bool(found.scalar_one())


def test_others_get_their_answers_when_casts_go_to_full_queues(
    service, channel
):
    """Four of them, which is more than there are threads that reply."""
    topic = f'conductor-{uuid.uuid4().hex}'
    answers = service.answers(topic)
    for _ in range(4):
        name = full_queue(channel, 'openstack')
        service.client.select_destinations_cast(
            CONTEXT, {'flavor': TINY}, reply_to={'topic': name}
        )
    for _ in range(5):
        service.client.select_destinations_cast(
            CONTEXT, {'flavor': TINY}, reply_to={'topic': topic}
        )
        assert answers.get(timeout=LIMIT_S)['error'] is None
    for _ in range(10):
        service.select_hosts(flavor=TINY)


def test_others_get_their_replies_when_reply_queues_are_full(service, channel):
    names = [full_queue(channel) for _ in range(4)]
    topic = service.conf.scheduler.topic
    instances = [
        call_with_reply_to(channel, topic, name)
        for name in names
        for _ in range(50)
    ]
    wait_until(lambda: placed(service, instances[-1]))
    # More messages than the prefetch wait for their replies to be taken.
    for _ in range(20):
        service.select_hosts(flavor=TINY)
    assert service.daemon.scheduler.health.degraded == []


def test_reply_arrives_when_a_full_queue_is_emptied(service, channel):
    name = full_queue(channel)
    instance = call_with_reply_to(channel, service.conf.scheduler.topic, name)
    wait_until(lambda: placed(service, instance))
    time.sleep(0.5)
    assert channel.basic_get(name, no_ack=True).body == 'x'

    def reply() -> Any:
        return channel.basic_get(name, no_ack=True)

    found: list[Any] = []
    wait_until(lambda: found.append(reply()) or found[-1] is not None)
    message = json.loads(json.loads(found[-1].body)['oslo.message'])
    (placement,) = message['result']['placements']
    assert placement['instance_uuid'] == instance


def encoded(method, reply_queue, **args):
    """Return a call as oslo.messaging sends it."""
    message = {
        'method': method,
        'args': args,
        'version': '1.0',
        '_msg_id': uuid.uuid4().hex,
        '_reply_q': reply_queue,
        '_unique_id': uuid.uuid4().hex,
        '_timeout': 60,
        **{f'_context_{name}': value for name, value in OWNER.items()},
    }
    return json.dumps(
        {'oslo.version': '2.0', 'oslo.message': json.dumps(message)}
    )


def test_a_request_is_kept_while_its_reply_cannot_be_sent(
    make_store, launch, rabbitmq
):
    """Its reply queue is absent, so the reply is left to the publisher."""
    store = make_store('sqlite')
    import_inventory(store)
    database = store.engine.url.render_as_string(hide_password=False)
    topic = f't{uuid.uuid4().hex[:8]}'
    daemon = launch(database, rabbitmq[1], f'[scheduler]\ntopic = {topic}')
    daemon.wait_for('Ready:')
    instance, replies = str(uuid.uuid4()), f'reply_{uuid.uuid4().hex}'
    request = {'flavor': SMALL, 'instance_uuids': [instance]}

    def is_claimed():
        with store.reading() as conn:
            return conn.execute(sa.select(schema.instances.c.uuid)).all()

    url = rabbitmq[1].replace('rabbit://', 'amqp://')
    with kombu.Connection(url) as conn:
        conn.Producer().publish(
            encoded('select_destinations', replies, request=request),
            exchange='openstack', routing_key=topic,
            content_type='application/json', content_encoding='utf-8',
        )  # fmt: skip
        wait_until(is_claimed)
        # Long enough for an acknowledgement that should not be sent.
        time.sleep(1)
        daemon.end(signal.SIGKILL)
        channel = conn.channel()
        message = wait_until(lambda: channel.basic_get(topic))
        assert message.delivery_info['redelivered']
        assert instance in str(message.body)
        channel.basic_ack(message.delivery_tag)
