"""The daemon as a process: its start, its servers' absence, its end."""

from __future__ import annotations

import signal
import socket
import threading
import time
import uuid

import pytest

from scheduler_service import errors
from scheduler_service.store import migrate
from scheduler_service.store.connection import Store
from tests import servers
from tests.conftest import new_database
from tests.functional.conftest import CONTEXT, SMALL, bring, connected

pytestmark = [pytest.mark.functional, pytest.mark.broker]


# As the shipped sample has it: queues that survive the broker's restart.
DURABLE = """
[oslo_messaging_rabbit]
amqp_durable_queues = true
rabbit_quorum_queue = true
rabbit_transient_quorum_queue = true
"""


def ready_store(base: str) -> str:
    """Return the URL of a database with tables and an inventory."""
    url = new_database(base)
    store = Store.connect(url)
    migrate.sync(store)
    bring(store)
    store.dispose()
    return url


@pytest.fixture
def ready_sqlite(tmp_path) -> str:
    """A database file with tables and an inventory."""
    url = f'sqlite:///{tmp_path}/ready.sqlite'
    store = Store.connect(url)
    migrate.sync(store)
    bring(store)
    store.dispose()
    return url


def on(topic: str) -> str:
    return f'[scheduler]\ntopic = {topic}\n'


@pytest.fixture
def topic() -> str:
    return f't{uuid.uuid4().hex[:8]}'


def test_tells_systemd_when_ready_and_exits_0_on_sigterm(
    connect, launch, rabbitmq, postgresql, topic, tmp_path
):
    address = str(tmp_path / 'notify')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(address)
        told.settimeout(40)
        daemon = launch(
            ready_store(postgresql[1]), rabbitmq[1], on(topic),
            NOTIFY_SOCKET=address,
        )  # fmt: skip
        assert told.recv(100) == b'READY=1'
        daemon.wait_for('Ready: 4 hosts, 2 pools')
        answer = connect(rabbitmq[1], topic).select_destinations(
            CONTEXT, {'flavor': SMALL}
        )
        assert len(answer['placements']) == 1
        assert daemon.end(signal.SIGTERM) == 0
        assert told.recv(100) == b'STOPPING=1'
    daemon.wait_for('Stopped')


def test_finishes_what_it_took_before_it_stops(
    connect, launch, rabbitmq, postgresql, topic
):
    database = ready_store(postgresql[1])
    daemon = launch(database, rabbitmq[1], on(topic))
    daemon.wait_for('Ready:')
    asking = connect(rabbitmq[1], topic)
    asking.ping(CONTEXT)
    answered: list[str] = []
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            zone = {'name': f'{uuid.uuid4().hex}.'}
            answered.append(asking.schedule_zone(CONTEXT, zone)['pool_id'])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(60)]
    for thread in threads:
        thread.start()
    # What it had not taken yet waits on the bus for the next one.
    assert daemon.end(signal.SIGTERM) == 0
    after = launch(database, rabbitmq[1], on(topic))
    after.wait_for('Ready:')
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(answered) == 60
    assert after.end() == 0


def test_a_request_survives_the_kill_of_its_daemon(
    connect, launch, rabbitmq, postgresql, topic
):
    database = ready_store(postgresql[1])
    first = launch(database, rabbitmq[1], on(topic))
    first.wait_for('Ready:')
    asking = connect(rabbitmq[1], topic, timeout=60)
    asking.ping(CONTEXT)
    answers: dict[str, str] = {}

    def ask(zone: str) -> None:
        found = asking.schedule_zone(CONTEXT, {'name': zone})
        answers[zone] = found['pool_id']

    threads = [
        threading.Thread(target=ask, args=(f'{n}.',)) for n in range(40)
    ]
    for thread in threads:
        thread.start()
    first.popen.kill()
    second = launch(database, rabbitmq[1], on(topic))
    second.wait_for('Ready:')
    for thread in threads:
        thread.join()
    assert len(answers) == 40


def test_waits_for_a_database_that_comes_back_and_says_so_once(
    connect, launch, rabbitmq, topic
):
    with servers.postgresql() as (server, base):
        database = ready_store(base)
        server.kill(signal.SIGINT)
        daemon = launch(database, rabbitmq[1], on(topic))
        daemon.wait_for('Degraded: database unreachable')
        server.relaunch()
        daemon.wait_for('Ready: 4 hosts')
        asking = connect(rabbitmq[1], topic, timeout=60)
        asking.select_destinations(CONTEXT, {'flavor': SMALL})

        server.kill(signal.SIGINT)
        answers = []
        thread = threading.Thread(
            target=lambda: answers.append(
                asking.select_destinations(CONTEXT, {'flavor': SMALL})
            )
        )
        thread.start()
        thread.join(3)
        assert thread.is_alive()
        server.relaunch()
        thread.join(40)
        assert len(answers) == 1
        assert daemon.count('Degraded: database unreachable') == 2
        # It is said after the answer, and read by a thread of the test's.
        end = time.monotonic() + 10
        while daemon.count('Database reachable again') < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert daemon.count('Database reachable again') == 2
        assert daemon.end() == 0


def test_waits_for_a_broker_that_comes_back(launch, postgresql, topic):
    with servers.rabbitmq() as (server, bus):
        daemon = launch(ready_store(postgresql[1]), bus, on(topic) + DURABLE)
        daemon.wait_for('Ready:')
        with connected(bus, topic, durable=True) as before:
            before.ping(CONTEXT)
        server.kill(signal.SIGTERM)
        server.relaunch()
        server.wait(lambda: servers.answers(server.port))
        with connected(bus, topic, timeout=60, durable=True) as asking:
            answer = asking.select_destinations(CONTEXT, {'flavor': SMALL})
        assert len(answer['placements']) == 1
        assert daemon.end() == 0


@pytest.mark.parametrize(
    ('extra', 'text'),
    [
        ('[filter_scheduler]\nenabled_filters = RamFiltre\n',
         'did you mean RamFilter?'),
        ('[pool_scheduler]\nscheduler_filters = atribute\n',
         'did you mean attribute?'),
        ('[filter_scheduler]\nhost_subset_size = 0\n', 'host_subset_size'),
    ],
)  # fmt: skip
def test_does_not_start_with_what_it_cannot_use(launch, tmp_path, extra, text):
    daemon = launch(f'sqlite:///{tmp_path}/a.sqlite', 'inproc://', extra)
    daemon.wait_for(text)
    assert daemon.popen.wait(30) == 1


def test_does_not_start_where_its_port_is_taken(launch, ready_sqlite):
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        daemon = launch(
            ready_sqlite, 'inproc://', f'[http]\nbind_port = {port}\n'
        )
        daemon.wait_for('ConfigurationError: [http] bind_host, bind_port')
        assert daemon.popen.wait(30) == 1


def test_does_not_start_without_a_database(launch):
    daemon = launch('', 'inproc://')
    daemon.wait_for('[database] connection is not set')
    assert daemon.popen.wait(30) == 1


def test_says_that_the_tables_are_missing(launch, tmp_path):
    daemon = launch(f'sqlite:///{tmp_path}/a.sqlite', 'inproc://')
    daemon.wait_for('scheduler-manage db sync')
    assert daemon.end(signal.SIGINT) == 0


def test_a_full_request_queue_refuses_at_once(make_service):
    service = make_service(scheduler__request_queue_size=1)
    inbox = service.daemon.scheduler._inbox
    with inbox._changed:
        # Nobody takes while the lock is held; the first fills the inbox.
        inbox._jobs.append(object())
        with pytest.raises(errors.ServiceBusy):
            service.daemon.scheduler.release([])
        inbox._jobs.clear()
