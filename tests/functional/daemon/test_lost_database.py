"""Daemon processes that lose their database while others keep it."""

import contextlib
import os
import pathlib
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import sqlalchemy as sa
import urllib3

from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from tests.support import servers
from tests.support.databases import locked, ready_database
from tests.support.documents import CONTEXT
from tests.support.processes import on_topic
from tests.support.servers import Server, free_port
from tests.support.tcp_proxy import Mode, TcpProxy, through_proxy
from tests.support.waiting import LIMIT_S, SLOWNESS, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.db]

TINY = {'memory_mb': 1}
CALLS = 40
_NOTICED = re.compile('new database session|Stopped consuming from')
# Every loss is in this time known, and said.
KNOWN_S = 5.0
# Every ping is answered in this time.
SOON_S = 2.0 * SLOWNESS

LOSSES: dict[str, Callable[[TcpProxy], None]] = {
    'refused': lambda proxy: proxy.become(Mode.REFUSE),
    'black hole': lambda proxy: proxy.become(Mode.BLACK_HOLE),
    'silent death': lambda proxy: proxy.freeze(),
}


def ask_often(asking: Any, results: Counter[str], pause_s: float) -> None:
    """Make the calls from threads; count answers and errors."""

    def ask() -> None:
        try:
            asking.select_destinations(CONTEXT, {'flavor': TINY})
            results['answered'] += 1
        except Exception as error:
            results[type(error).__name__] += 1

    threads = [threading.Thread(target=ask) for _ in range(CALLS)]
    for thread in threads:
        thread.start()
        time.sleep(pause_s)
    for thread in threads:
        thread.join()


def readiness(port: int) -> dict[str, Any]:
    """Return what a daemon says of itself, ready or not."""
    response = urllib3.request('GET', f'http://127.0.0.1:{port}/readyz')
    return response.json()


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ('kind', 'loss'),
    [
        ('postgresql', 'black hole'),
        pytest.param('postgresql', 'refused', marks=SLOW),
        pytest.param('mariadb', 'black hole', marks=SLOW),
        pytest.param('mariadb', 'silent death', marks=SLOW),
    ],
)
def test_no_call_is_lost_when_one_daemon_loses_the_database(
    kind, loss, connect, launch, request, rabbitmq, topic
):
    database = ready_database(request.getfixturevalue(kind)[1])
    with through_proxy(database) as (proxy, proxied):
        sick = launch(proxied, rabbitmq[1], on_topic(topic))
        well = launch(database, rabbitmq[1], on_topic(topic))
        sick.wait_for('Ready:')
        well.wait_for('Ready:')
        asking = connect(rabbitmq[1], topic, timeout=LIMIT_S)
        asking.ping(CONTEXT)
        results: Counter[str] = Counter()
        lost_at = time.time()
        LOSSES[loss](proxy)
        ask_often(asking, results, pause_s=0.1)
        assert results == {'answered': CALLS}
        if loss == 'silent death':
            # New connections work. Whoever notices first says what it does.
            wait_until(lambda: any(map(_NOTICED.search, sick.lines)))
        else:
            sick.wait_for('Stopped consuming from')
        works_at = time.time()
        proxy.become(Mode.FORWARD)
        if any('Stopped consuming from' in line for line in sick.lines):
            sick.wait_for('Database reachable again')
            sick.wait_for(f'Consuming from {topic} again')
        assert sick.end() == 0
        assert well.end() == 0
    if loss == 'black hole':
        (away,) = outages(database)
        assert away.detail.startswith('database unreachable')
        assert lost_at < away.begun_at < works_at < away.ended_at


def outages(database: str) -> Any:
    """Return the outages that daemons recorded."""
    store = Store.connect(database)
    with store.reading() as conn:
        columns = schema.events.c
        away = sa.select(schema.events).where(columns.event == 'database away')
        found = conn.execute(away).all()
    store.dispose()
    return found


def test_ping_tells_the_truth_when_the_only_daemon_loses_the_database(
    connect, launch, postgresql, rabbitmq, topic
):
    """It has none when it starts, either."""
    with through_proxy(ready_database(postgresql[1])) as (proxy, proxied):
        proxy.become(Mode.REFUSE)
        port = free_port()
        http = f'[http]\nbind_port = {port}\n'
        daemon = launch(proxied, rabbitmq[1], on_topic(topic) + http)
        daemon.wait_for('Degraded: database unreachable')
        proxy.become(Mode.FORWARD)
        daemon.wait_for('Ready: 4 hosts')
        assert readiness(port)['ready']
        asking = connect(rabbitmq[1], topic, timeout=LIMIT_S)
        assert asking.ping(CONTEXT)['database'] == 'up'
        proxy.become(Mode.BLACK_HOLE)
        wait_until(lambda: asking.ping(CONTEXT)['database'] == 'away')
        assert readiness(port)['database'] == 'bad'
        results: Counter[str] = Counter()
        thread = threading.Thread(
            target=ask_often, args=(asking, results, 0.0)
        )
        thread.start()
        time.sleep(2)
        told = asking.ping(CONTEXT)
        assert told['database'] == 'away'
        # Nothing circles: each message was returned at most once.
        assert told['counters'].get('requests_redelivered', 0) <= CALLS
        assert not results
        proxy.become(Mode.FORWARD)
        thread.join(LIMIT_S)
        assert results == {'answered': CALLS}
        assert daemon.count('Degraded: database unreachable') == 2
        # It is said after the answer, and read by a thread of the test's.
        wait_until(lambda: daemon.count('Database reachable again') == 2)
        assert daemon.end() == 0


@contextlib.contextmanager
def frozen(server: Server) -> Iterator[None]:
    """Halt a server with its children: connections stay, without answers."""
    assert server.process is not None
    pid = server.process.pid
    children = pathlib.Path(f'/proc/{pid}/task/{pid}/children').read_text()
    pids = [pid, *map(int, children.split())]
    try:
        for each in pids:
            os.kill(each, signal.SIGSTOP)
        yield
    finally:
        for each in pids:
            os.kill(each, signal.SIGCONT)


@pytest.fixture(params=['sqlite locked', 'postgresql frozen'])
def lose(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> Iterator[tuple[str, Callable[[], AbstractContextManager[None]]]]:
    """A database of its own, and what makes it stay away for a block."""
    if request.param == 'sqlite locked':
        database = ready_database(f'sqlite:///{tmp_path}/')
        yield database, lambda: locked(database.removeprefix('sqlite:///'))
        return
    with servers.postgresql(durable=False) as (server, base):
        yield ready_database(base), lambda: frozen(server)


def test_ping_is_answered_soon_while_the_database_is_away(
    lose, connect, launch, rabbitmq, topic
):
    database, away = lose
    daemon = launch(database, rabbitmq[1], on_topic(topic))
    daemon.wait_for('Ready:')
    asking = connect(rabbitmq[1], topic, timeout=LIMIT_S)
    results: Counter[str] = Counter()
    asking.ping(CONTEXT)
    with away():
        thread = threading.Thread(
            target=ask_often, args=(asking, results, 0.1)
        )
        thread.start()
        until = time.monotonic() + 2 * KNOWN_S
        while time.monotonic() < until:
            start = time.monotonic()
            asking.ping(CONTEXT, recent=True)
            assert time.monotonic() - start < SOON_S
            time.sleep(0.1)
        assert not results
    thread.join(LIMIT_S)
    assert results == {'answered': CALLS}
    assert daemon.end() == 0
