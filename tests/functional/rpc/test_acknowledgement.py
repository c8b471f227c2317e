"""A request is acknowledged after its reply, on RabbitMQ."""

from __future__ import annotations

import json
import signal
import time
import uuid

import kombu
import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from tests.support.documents import OWNER, SMALL
from tests.support.stores import import_inventory
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker


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
