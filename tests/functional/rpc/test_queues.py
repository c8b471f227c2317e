"""Queues on RabbitMQ: whose they are, and what a restart leaves behind."""

import re
import signal
import uuid

import kombu
import pytest
from oslo_config import cfg

from scheduler_service.rpc import transport
from scheduler_service.rpc.client import TOPIC, SchedulerClient
from tests.support import servers
from tests.support.documents import CONTEXT, SMALL
from tests.support.processes import on_topic
from tests.support.services import hosts_of
from tests.support.waiting import LIMIT_S, wait_until

import oslo_messaging  # isort: skip

pytestmark = pytest.mark.broker


SHARED = [TOPIC, f'{TOPIC}.consuming']


@pytest.fixture
def vhost(rabbitmq):
    """The URL of a virtual host of its own."""
    return servers.new_vhost(*rabbitmq)


@pytest.fixture
def other_bus(vhost, tmp_path):
    """Options and a transport as another service has them."""
    path = tmp_path / 'other.conf'
    path.write_text(
        f'[DEFAULT]\ntransport_url = {vhost}\ncontrol_exchange = nova\n'
    )
    conf = cfg.ConfigOpts()
    conf(['--config-file', str(path)])
    bus = transport.for_client(conf)
    yield conf, bus
    bus.cleanup()


def named(server: str) -> str:
    """Return the lines of a configuration that name a daemon."""
    return f'[scheduler]\nserver = {server}\n'


def queues_in(rabbitmq, vhost: str) -> list[str]:
    """Return the queues but those of replies, without their random parts."""
    found = servers.names_in(rabbitmq[0], vhost, 'queues')
    return sorted(
        re.sub(r'\.[0-9a-f]{32}$', '', name)
        for name in found
        if not name.startswith('reply_')
    )


def test_a_client_of_another_service_reaches_the_daemon(
    make_service, vhost, other_bus
):
    make_service(url=vhost)
    client = SchedulerClient(*other_bus, timeout=LIMIT_S)
    answer = client.select_destinations(CONTEXT, {'flavor': SMALL})
    assert hosts_of(answer) == ['compute-4']


def test_daemons_share_one_queue_and_leave_no_other(
    launch, ready_sqlite, vhost, rabbitmq
):
    """The own queue of one that is killed expires."""
    expires = '[oslo_messaging_rabbit]\nrabbit_transient_queues_ttl = 2\n'
    stopped, killed = (
        launch(ready_sqlite, vhost, named(name) + expires) for name in 'ab'
    )
    for daemon in (stopped, killed):
        daemon.wait_for('Ready')
    assert queues_in(rabbitmq, vhost) == [
        TOPIC, f'{TOPIC}.a', f'{TOPIC}.b', f'{TOPIC}.consuming',
    ]  # fmt: skip
    exchanges = servers.names_in(rabbitmq[0], vhost, 'exchanges')
    assert not [name for name in exchanges if name.endswith('_fanout')]
    assert stopped.end() == 0
    assert queues_in(rabbitmq, vhost) == [
        TOPIC, f'{TOPIC}.b', f'{TOPIC}.consuming',
    ]  # fmt: skip
    killed.end(signal.SIGKILL)
    wait_until(lambda: queues_in(rabbitmq, vhost) == SHARED, pause_s=0.2)


def test_a_daemon_says_in_one_line_that_a_queue_is_of_another_kind(
    launch, ready_sqlite, rabbitmq
):
    name = f't{uuid.uuid4().hex[:8]}'
    url = rabbitmq[1].replace('rabbit:', 'amqp:')
    with kombu.Connection(url) as conn, conn.channel() as channel:
        channel.queue_declare(
            name, durable=True, auto_delete=False,
            arguments={'x-queue-type': 'classic'},
        )  # fmt: skip
    daemon = launch(
        ready_sqlite,
        rabbitmq[1],
        f'{on_topic(name)}exchange = {name}\n'
        '[oslo_messaging_rabbit]\nrabbit_quorum_queue = true\n',
    )
    assert daemon.popen.wait(LIMIT_S) == 1
    wait_until(lambda: daemon.count('scheduler-service: ConfigurationError'))
    (line,) = (line for line in daemon.lines if 'ConfigurationError:' in line)
    assert 'of another kind (PRECONDITION_FAILED' in line
    assert name in line
    assert not daemon.count('Traceback')


class Another:
    """The scheduler of a compute service, as far as the bus sees it."""

    target = oslo_messaging.Target(version='4.5')

    def __init__(self) -> None:
        self.taken: list[int] = []

    def select_destinations(self, ctxt, number):
        """Count a request."""
        self.taken.append(number)
        return number


def test_no_message_of_another_scheduler_is_taken(
    make_service, vhost, other_bus
):
    _, bus = other_bus
    another = Another()
    theirs = oslo_messaging.Target(topic='scheduler', version='4.5')
    server = oslo_messaging.get_rpc_server(
        bus, theirs(server='host'), [another]
    )
    server.start()
    make_service(url=vhost)
    caller = oslo_messaging.get_rpc_client(bus, theirs, timeout=LIMIT_S)
    try:
        for number in range(10):
            caller.call({}, 'select_destinations', number=number)
        caller.prepare(fanout=True).cast({}, 'select_destinations', number=10)
        wait_until(lambda: another.taken == [*range(11)])
    finally:
        server.stop()
        server.wait()
