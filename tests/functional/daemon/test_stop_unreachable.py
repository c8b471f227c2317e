"""Processes that are told to end while their servers are unreachable."""

import signal
import threading
import time

import pytest

from tests.support.databases import ready_database
from tests.support.documents import CONTEXT, SMALL
from tests.support.processes import Process
from tests.support.servers import free_port
from tests.support.tcp_proxy import Mode, tcp_proxy
from tests.support.waiting import SLOWNESS

LIMIT_S = 6
# For the signal to arrive, and the process to be gone, on a busy machine; less
# than another limit.
MARGIN_S = 5.0 * SLOWNESS


def settings(topic: str, limit_s: int = LIMIT_S) -> str:
    return (
        f'[scheduler]\ntopic = {topic}\n'
        f'graceful_shutdown_timeout = {limit_s}\n'
    )


def seconds_to_end(daemon: Process) -> float:
    """Return how long a daemon takes to end with success."""
    start = time.monotonic()
    assert daemon.end(signal.SIGTERM) == 0
    return time.monotonic() - start


def test_daemon_ends_when_it_never_reached_the_broker(
    launch, ready_sqlite, topic
):
    bus = f'rabbit://guest:guest@127.0.0.1:{free_port()}/'
    daemon = launch(ready_sqlite, bus, settings(topic))
    port = bus.rpartition(':')[2].rstrip('/')
    daemon.wait_for(
        f'Degraded: broker unreachable (127.0.0.1:{port}: '
        '[Errno 111] Connection refused)'
    )
    assert seconds_to_end(daemon) < LIMIT_S + MARGIN_S


@pytest.mark.slow
def test_daemon_ends_when_it_never_reached_the_database(launch, topic):
    with tcp_proxy(free_port()) as proxy:
        proxy.become(Mode.BLACK_HOLE)
        database = f'postgresql+psycopg://a@127.0.0.1:{proxy.port}/a'
        daemon = launch(database, 'inproc://', settings(topic))
        daemon.wait_for('Degraded: database unreachable')
        assert seconds_to_end(daemon) < LIMIT_S + MARGIN_S


@pytest.mark.broker
@pytest.mark.db
@pytest.mark.parametrize(
    ('lost', 'mode'),
    [
        ('broker', Mode.BLACK_HOLE),
        pytest.param('database', Mode.REFUSE, marks=pytest.mark.slow),
    ],
)
def test_daemon_ends_in_time_when_a_server_is_lost(
    lost, mode, connect, launch, postgresql, rabbitmq, topic
):
    database, bus = ready_database(postgresql[1]), rabbitmq[1]
    server = (rabbitmq if lost == 'broker' else postgresql)[0]
    with tcp_proxy(server.port) as proxy:
        old, new = f':{server.port}/', f':{proxy.port}/'
        daemon = launch(
            database.replace(old, new), bus.replace(old, new), settings(topic)
        )
        daemon.wait_for('Ready:')
        asking = connect(bus, topic, timeout=2)
        asking.select_destinations(CONTEXT, {'flavor': SMALL})
        proxy.become(mode)
        # One is under way, in whatever state.
        asked = threading.Thread(target=_ask_in_vain, args=(asking,))
        asked.start()
        time.sleep(0.5)
        assert seconds_to_end(daemon) < LIMIT_S + MARGIN_S
        asked.join()


@pytest.mark.broker
@pytest.mark.db
def test_daemon_ends_at_once_when_it_is_told_twice(
    launch, postgresql, rabbitmq, topic
):
    server, bus = rabbitmq
    with tcp_proxy(server.port) as proxy:
        bus = bus.replace(f':{server.port}/', f':{proxy.port}/')
        daemon = launch(
            ready_database(postgresql[1]), bus, settings(topic, 60)
        )
        daemon.wait_for('Ready:')
        proxy.become(Mode.BLACK_HOLE)
        daemon.popen.send_signal(signal.SIGTERM)
        time.sleep(1)
        assert daemon.popen.poll() is None
        # It is given less time than it would have.
        assert daemon.end() == 0


def _ask_in_vain(asking) -> None:
    with pytest.raises(Exception):  # noqa: B017 - whatever the bus raises
        asking.select_destinations(CONTEXT, {'flavor': SMALL})
