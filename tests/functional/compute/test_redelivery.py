"""A daemon that ends between its claim and its answer leaves one claim."""

from __future__ import annotations

import json
import signal
import uuid

import kombu
import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from tests.support.compute import (
    HOSTS,
    hosts_of,
    new_topic,
    publish_request,
)
from tests.support.stores import import_inventory
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.db]


def test_another_daemon_answers_with_the_host_that_is_claimed(
    make_store, launch, rabbitmq
):
    store, topic = make_store('postgresql'), new_topic()
    import_inventory(store, HOSTS)
    database = store.engine.url.render_as_string(hide_password=False)
    options = (
        f'[scheduler]\ntopic = {new_topic()}\n'
        f'[compute]\nenabled = true\ntopic = {topic}\n'
    )
    instance, replies = str(uuid.uuid4()), f'reply_{uuid.uuid4().hex}'

    def claimed():
        table = schema.allocations
        with store.reading() as conn:
            query = sa.select(table.c.consumer_uuid, table.c.host_id)
            return set(conn.execute(query.distinct()).all())

    first = launch(database, rabbitmq[1], options)
    first.wait_for('Ready:')
    publish_request(rabbitmq[1], topic, instance, replies)
    (before,) = wait_until(claimed)
    first.end(signal.SIGKILL)
    with kombu.Connection(rabbitmq[1].replace('rabbit://', 'amqp://')) as conn:
        channel = conn.channel()
        channel.queue_declare(replies, auto_delete=False, exclusive=True)
        launch(database, rabbitmq[1], options).wait_for('Ready:')
        sent = wait_until(lambda: channel.basic_get(replies, no_ack=True), 30)
    body = json.loads(json.loads(sent.body)['oslo.message'])
    assert hosts_of(body['result'])[0][0] == 'compute-1'
    assert claimed() == {before}
