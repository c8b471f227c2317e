"""Every RPC method with payloads that are wrong."""

import zlib

import kombu
import pytest

from scheduler_service.bus import wire
from tests.support import fuzzing
from tests.support.documents import CONTEXT
from tests.support.fuzzing import NAMES

import oslo_messaging  # isort: skip

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ('bus', 'count'),
    [('inproc', 500), pytest.param('rabbit', 250, marks=pytest.mark.broker)],
)
def test_error_has_a_name_when_payloads_are_wrong(make_service, bus, count):
    service = make_service(bus)
    client = oslo_messaging.get_rpc_client(
        service.client.transport,
        oslo_messaging.Target(topic=service.conf.scheduler.topic),
    )
    told = fuzzing.rpc(client, count, 11, NAMES)
    assert told['unnamed'] == []
    assert told['outcomes']['InvalidRequest'] > count / 4
    assert told['outcomes']['answered'] > count / 50
    assert service.client.ping(CONTEXT)['database'] == 'up'


@pytest.mark.broker
def test_messages_are_dropped_when_they_cannot_be_read(make_service, rabbitmq):
    service = make_service('rabbit')
    topic = service.conf.scheduler.topic
    url = rabbitmq[1].replace('rabbit://', 'amqp://')
    with kombu.Connection(url) as conn:
        producer = conn.Producer()
        for body in (
            b'\xff\xfe\x00',
            b'{',
            b'[]',
            b'"x"',
            b'{"a": 1}',
            b'{"oslo.version": "2.0", "oslo.message": "{"}',
            b'{"oslo.version": "9.0", "oslo.message": "{}"}',
            b'{"oslo.version": "2.0", "oslo.message": "[1]"}',
            b'{"oslo.version": "2.0", "oslo.message": 7}',
        ):
            for kind in ('application/json', 'text/plain', 'x/y'):
                producer.publish(
                    body, exchange='openstack', routing_key=topic,
                    content_type=kind, content_encoding='utf-8',
                )  # fmt: skip
        packed = zlib.compress(bytes(wire.MOST_BYTES + 1))
        producer.publish(
            packed, exchange='openstack', routing_key=topic,
            content_type='application/json', content_encoding='utf-8',
            headers={'compression': 'application/x-gzip'},
        )  # fmt: skip
    for _ in range(3):
        assert service.client.ping(CONTEXT)['database'] == 'up'
