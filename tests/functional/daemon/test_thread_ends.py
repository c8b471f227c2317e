"""Each thread of a daemon ends once: what follows is one rule for all."""

import re
import signal
from typing import Any

import pytest

from tests.support import ending_filter
from tests.support.databases import ready_database
from tests.support.documents import CONTEXT, SMALL
from tests.support.processes import on_topic
from tests.support.servers import free_port
from tests.support.waiting import LIMIT_S

pytestmark = [pytest.mark.broker, pytest.mark.db, pytest.mark.slow]

VITAL = {'bus', 'engine'}
# They end with the process, and hold no work of their own: the main thread,
# threads of pools, which survive what their work raises, and timers.
OTHERS = re.compile(r'MainThread|Thread-\d+.*|.*_\d+')
# They wait for a signal.
SIGNALS = {'report': signal.SIGUSR2, 'reload': signal.SIGHUP}


def select(client: Any, name: str) -> None:
    flavor = {**SMALL, 'memory_mb': 64, 'name': name}
    assert client.select_destinations(CONTEXT, {'flavor': flavor})[
        'placements'
    ]


@pytest.fixture
def start(launch, rabbitmq, postgresql, topic):
    """Give a function that starts a daemon."""
    database = ready_database(postgresql[1])

    def started() -> Any:
        config = (
            f'{on_topic(topic)}{ending_filter.CONFIG}'
            f'[http]\nbind_port = {free_port()}\n'
        )
        # The watchdog has a thread, too.
        daemon = launch(
            database, rabbitmq[1], config, WATCHDOG_USEC='60000000'
        )
        daemon.wait_for('Ready:')
        return daemon

    return started


def test_a_thread_that_ends_starts_again_and_shows_in_ping(
    connect, rabbitmq, topic, start
):
    daemon = start()
    client = connect(rabbitmq[1], topic, timeout=LIMIT_S)
    select(client, 'threads')
    line = daemon.wait_for('Threads: ')
    names = set(line.partition('Threads: ')[2].partition(';')[0].split(','))
    assert {*VITAL, *SIGNALS, 'http', 'watchdog', 'stage-undoer'} <= names
    ended = {name for name in names if not OTHERS.fullmatch(name)} - VITAL
    for name in sorted(ended):
        select(client, f'end {name}')

        daemon.wait_for(f'Ending {name};')
        if name in SIGNALS:
            daemon.popen.send_signal(SIGNALS[name])
        daemon.wait_for(f'Thread {name} failed')
        degraded = client.ping(CONTEXT)['degraded']
        assert any(f'thread {name} failed' in text for text in degraded)
    select(client, 'plain')
    assert daemon.end() == 0


@pytest.mark.parametrize('name', sorted(VITAL))
def test_the_daemon_ends_where_a_thread_ends_that_it_needs(
    connect, rabbitmq, topic, start, name
):
    daemon = start()
    client = connect(rabbitmq[1], topic, timeout=LIMIT_S)
    select(client, f'end {name}')
    other = start()
    select(client, 'plain')
    client.ping(CONTEXT)
    # systemd starts it again after any status but 0.
    assert daemon.popen.wait() == 1
    daemon.wait_for(f'Thread {name} failed')
    select(client, 'plain')
    assert other.end() == 0
