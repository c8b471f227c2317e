"""Queues and exchanges are those of oslo.messaging's servers and clients.

Each declares what the other has declared, in both orders.
"""

from typing import Any

import kombu
import pytest

from scheduler_service import errors
from scheduler_service.bus.options import GROUP
from scheduler_service.rpc import transport
from tests.support import clouds, servers
from tests.support.bus_consumers import Consuming
from tests.support.services import new_conf
from tests.support.waiting import wait_until

import oslo_messaging  # isort: skip

pytestmark = pytest.mark.broker
OPTIONS = {
    'none': {},
    'durable': {'amqp_durable_queues': True},
    'auto-delete': {'amqp_auto_delete': True},
    'quorum': {
        'rabbit_quorum_queue': True,
        'rabbit_quorum_delivery_limit': 5,
        'rabbit_quorum_max_memory_length': 1000,
        'rabbit_quorum_max_memory_bytes': 10**7,
    },
    'transient quorum': {
        'rabbit_quorum_queue': True,
        'rabbit_transient_quorum_queue': True,
    },
    'ttl': {'rabbit_transient_queues_ttl': 60},
    'mirrored': {'rabbit_ha_queues': True},
    'stream': {
        'amqp_durable_queues': True,
        'rabbit_quorum_queue': True,
        'rabbit_transient_quorum_queue': True,
        'rabbit_stream_fanout': True,
        'rabbit_qos_prefetch_count': 10,
    },
}


class Endpoint:
    """An endpoint of another service."""

    target = oslo_messaging.Target(version='1.0')

    def echo(self, ctxt: Any, value: int) -> int:
        """Return the argument."""
        return value


class StockServer:
    """A server of oslo.messaging."""

    def __init__(self, url: str, topic: str, options: Any) -> None:
        conf = new_conf()
        for name, value in options.items():
            conf.set_override(name, value, GROUP)
        self._bus = oslo_messaging.get_rpc_transport(conf, url=url)
        self._server = oslo_messaging.get_rpc_server(
            self._bus,
            oslo_messaging.Target(
                exchange='openstack', topic=topic, server='s'
            ),
            [Endpoint()],
        )

    def __enter__(self) -> None:
        self._server.start()

    def __exit__(self, *fault: Any) -> None:
        self._server.stop()
        self._server.wait()
        clouds.clean([self._bus])


@pytest.fixture
def url(rabbitmq) -> str:
    """A virtual host of its own."""
    return servers.new_vhost(*rabbitmq)


@pytest.mark.parametrize('options', OPTIONS.values(), ids=OPTIONS)
def test_the_other_declares_the_same(options, url, topic):
    for first in ('consumer', 'server'):
        consumer = Consuming(url, f'{topic}-{first}', True, options)
        server = StockServer(url, f'{topic}-{first}', options)
        try:
            if first == 'consumer':
                consumer.bus.start()
            with server:
                if first == 'server':
                    consumer.bus.start()
                assert consumer.bus.is_connected()
        finally:
            consumer.bus.close()
        with kombu.Connection(url.replace('rabbit:', 'amqp:')) as connection:
            connection.channel().exchange_delete('openstack')


@pytest.mark.parametrize('durable', [False, True])
def test_an_exchange_that_another_service_made_is_used(
    url, topic, consume, durable
):
    with kombu.Connection(url.replace('rabbit:', 'amqp:')) as connection:
        channel = connection.channel()
        channel.exchange_declare(
            'openstack', 'topic', durable=not durable, auto_delete=False
        )
        consumer = consume(url, amqp_durable_queues=durable)
        kombu.Producer(channel).publish(
            {'oslo.version': '2.0', 'oslo.message': '{"method": "m"}'},
            exchange='openstack',
            routing_key=topic,
        )
        assert consumer.take().method == 'm'


@pytest.mark.parametrize(
    'arguments', [{'x-max-length': 5}, {'x-queue-type': 'quorum'}]
)
def test_a_queue_of_another_kind_ends_the_start(
    url, topic, consume, arguments
):
    with kombu.Connection(url.replace('rabbit:', 'amqp:')) as connection:
        connection.channel().queue_declare(
            topic, durable=True, auto_delete=False, arguments=arguments
        )
    with pytest.raises(errors.ConfigurationError, match='another kind'):
        consume(url, amqp_durable_queues=True)


def test_an_exchange_of_another_kind_ends_the_start(url, consume):
    with kombu.Connection(url.replace('rabbit:', 'amqp:')) as connection:
        connection.channel().exchange_declare(
            'openstack', 'direct', auto_delete=False
        )
    with pytest.raises(
        errors.ConfigurationError,
        match=r"of another kind \(PRECONDITION_FAILED.*exchange 'openstack'",
    ):
        consume(url)


def test_a_refused_login_ends_the_start(rabbitmq, topic):
    address = f'127.0.0.1:{rabbitmq[0].port}'
    url = f'rabbit://guest:secret@{address}/'
    consumer = Consuming(url, topic, False, {})
    with pytest.raises(errors.ConfigurationError, match='refuses the login'):
        consumer.bus.start()
    wait_until(lambda: not consumer.bus._thread.is_alive())


def test_a_virtual_host_without_the_exchange_is_well(url):
    conf = new_conf(transport_url=url)
    transport.look(conf, 'openstack', 'none')
    transport.connect(conf)
