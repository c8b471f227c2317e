"""Copies of another service's requests, read with few rights."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import time
import uuid

import kombu
import pytest

from scheduler_service.bus.listener import HUNG_S, Listener
from scheduler_service.engine.health import Health
from scheduler_service.rpc import transport
from tests.support import servers
from tests.support.compute import EXCHANGE, new_topic, publish_request
from tests.support.services import new_conf
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = [pytest.mark.functional, pytest.mark.broker]
# Of the user, as the page on moving has them: configure, write, read.
RIGHTS = '^amq[.]gen.*$', '^amq[.]gen.*$', '^(amq[.]gen.*|nova)$'


class Bus:
    """A virtual host with the queue of another service, and a listener.

    :ivar taken: (message, context) of each request that was read
    """

    def __init__(self, server, base, durable=True):
        self.server = server
        self.url = servers.new_vhost(server, base)
        self.vhost = self.url.rpartition('/')[2]
        self.topic = new_topic()
        kind = {'x-queue-type': 'quorum'} if durable else None
        exchange = kombu.Exchange(EXCHANGE, 'topic', durable=durable)
        self._real = kombu.Queue(
            self.topic, exchange, self.topic, durable=durable,
            auto_delete=False, queue_arguments=kind,
        )  # fmt: skip
        self.declare()
        self.taken = queue.Queue()
        self.health = Health()

    def declare(self):
        """Declare what the other service does."""
        with self.connection() as conn:
            self._real(conn.default_channel).declare()

    def connection(self):
        return kombu.Connection(self.url.replace('rabbit://', 'amqp://'))

    def listener(self, take=None):
        """Return a listener as a user with no other rights."""
        user = f'shadow-{uuid.uuid4().hex[:8]}'
        add = f'{servers.USERS}:add_user'
        servers.call(self.server, add, user, 'secret', 'guest')
        permit = f'{servers.USERS}:set_permissions'
        # A backslash would be Erlang's.
        servers.call(self.server, permit, user, self.vhost, *RIGHTS, 'guest')
        url = self.url.replace('guest:guest', f'{user}:secret')
        return Listener(
            transport.rabbit(new_conf(), url),
            EXCHANGE,
            self.topic,
            take or (lambda *request: self.taken.put(request)),
            self.health,
        )

    def names(self, kind):
        return servers.names_in(self.server, self.url, kind)

    def own_queues(self):
        return self.names('queues') - {self.topic}

    def send(self):
        """Send a request; return its instance."""
        instance = str(uuid.uuid4())
        publish_request(self.url, self.topic, instance, 'replies')
        return instance

    def read(self):
        """Return the instance of the next request that was read."""
        message, context = self.taken.get(timeout=LIMIT_S)
        assert context['user_id'] == 'u'
        return message['args']['instance_uuids'][0]


@pytest.fixture(params=[True, False], ids=['quorum', 'classic'])
def bus(request, rabbitmq):
    return Bus(*rabbitmq, durable=request.param)


@pytest.fixture
def listening(bus):
    listener = bus.listener()
    listener.start()
    wait_until(bus.own_queues)
    yield bus
    listener.stop(LIMIT_S)


def test_requests_are_copied_and_stay_in_the_queue(listening):
    sent = [listening.send() for _ in range(3)]
    assert [listening.read() for _ in sent] == sent
    with listening.connection() as conn:

        def counts():
            # A queue may get a message later than the queue of its copies.
            real = conn.default_channel.queue_declare(
                listening.topic, passive=True
            )
            return real.message_count, real.consumer_count

        wait_until(lambda: counts()[0] == len(sent))
        assert counts() == (3, 0)


def test_only_a_queue_of_its_own_is_declared(bus):
    exchanges, before = bus.names('exchanges'), bus.names('queues')
    listener = bus.listener()
    listener.start()
    (own,) = wait_until(lambda: bus.names('queues') - before)
    assert own.startswith('amq.gen')
    assert bus.names('exchanges') == exchanges
    printed = servers.evaluate(
        bus.server,
        '{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r('
        f'<<"{bus.vhost}">>, queue, <<"{own}">>)), '
        '{amqqueue:is_durable(Q), amqqueue:get_exclusive_owner(Q) =/= none, '
        'amqqueue:get_type(Q), lists:sort(amqqueue:get_arguments(Q))}',
    )
    assert printed.startswith('{false, true, rabbit_classic_queue, ')
    for word in ('x-max-length', 'x-message-ttl', 'drop-head'):
        # As it prints a text of bytes in a term.
        assert ','.join(map(str, word.encode())) in printed
    # It is gone with its connection.
    listener.stop(LIMIT_S)
    wait_until(lambda: bus.names('queues') == before)


def test_what_is_not_read_is_dropped_at_the_head(bus):
    listener = bus.listener()
    listener._read = lambda connection: (
        bus.health.count('heartbeats') or (listener._stopping.wait())
    )
    listener.start()
    try:
        (own,) = wait_until(bus.own_queues)
        wait_until(lambda: bus.health.counters().get('heartbeats'))
        with bus.connection() as conn:
            producer = conn.Producer()
            for _ in range(3000):
                producer.publish(
                    b'x' * 1000, exchange=EXCHANGE, routing_key=bus.topic,
                    delivery_mode=1,
                )  # fmt: skip
            # An exclusive queue is declared by nobody else.
            counted = (
                '{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r('
                f'<<"{bus.vhost}">>, queue, <<"{own}">>)), '
                '[{_, N}] = rabbit_amqqueue:info(Q, [messages]), N'
            )
            assert int(servers.evaluate(bus.server, counted)) <= 1500
            # No message of the real queue is lost.
            wait_until(lambda: conn.default_channel.queue_declare(
                bus.topic, passive=True
            ).message_count == 3000)  # fmt: skip
    finally:
        listener.stop(LIMIT_S)


def test_it_listens_again_once_the_exchange_is_back(listening):
    with listening.connection() as conn:
        conn.default_channel.exchange_delete(EXCHANGE)
    before = listening.own_queues()
    servers.evaluate(
        listening.server,
        '[rabbit_networking:close_connection(P, "test") || P <- '
        'rabbit_networking:connections(), [{vhost, V}] <- '
        f'[rabbit_reader:info(P, [vhost])], V =:= <<"{listening.vhost}">>]',
    )
    wait_until(lambda: listening.health.is_degraded('listener'))
    listening.declare()
    wait_until(lambda: listening.own_queues() - before)
    wait_until(lambda: not listening.health.is_degraded('listener'))
    sent = listening.send()
    assert listening.read() == sent


def test_what_came_while_the_process_hung_is_dropped(bus):
    context = multiprocessing.get_context('fork')
    taken = context.SimpleQueue()

    def listen():
        bus.listener(lambda *request: taken.put(request[0])).start()
        signal.pause()

    process = context.Process(target=listen, daemon=True)
    process.start()
    (before,) = wait_until(bus.own_queues)
    os.kill(process.pid, signal.SIGSTOP)
    old, since = bus.send(), time.monotonic()
    wait_until(lambda: time.monotonic() > since + HUNG_S)
    os.kill(process.pid, signal.SIGCONT)
    wait_until(lambda: bus.own_queues() - {before})
    new = bus.send()
    assert taken.get()['args']['instance_uuids'] == [new] != [old]
    process.kill()
    process.join()
