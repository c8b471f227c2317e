"""What a daemon process does on SIGUSR2, and what it tells the watchdog."""

import signal
import socket
import threading
import time

import pytest

from tests.support import hanging_filter
from tests.support.databases import ready_database
from tests.support.documents import CONTEXT, SMALL
from tests.support.processes import on_topic
from tests.support.servers import free_port
from tests.support.tcp_proxy import Mode, tcp_proxy
from tests.support.waiting import LIMIT_S, wait_until

FED = b'WATCHDOG=1'
# In microseconds; short, so that the test is.
WATCHDOG_USEC = '4000000'


class Told:
    """What a daemon told a socket of the test, in place of systemd."""

    def __init__(self, address):
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._found = []
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self):
        while text := self._socket.recv(100):
            self._found.append(text)

    def wait_for(self, text):
        """Wait for a text; forget it and what came before."""
        wait_until(lambda: text in self._found)
        del self._found[: self._found.index(text) + 1]

    def drain(self):
        """Return what came and was not waited for."""
        found, self._found = self._found, []
        return found

    def close(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
            own.sendto(b'', self.address)
        self._thread.join()
        self._socket.close()


@pytest.fixture
def told(tmp_path):
    made = Told(str(tmp_path / 'notify'))
    yield made
    made.close()


def sections(text):
    """Return the titles of a report."""
    return [
        line.strip('= \n')
        for line in text
        if line.startswith('====  ') and line.strip('= \n')
    ]


def test_a_report_is_written_while_the_database_is_awaited(launch):
    daemon = launch(
        f'postgresql+psycopg://a:hunter2@127.0.0.1:{free_port()}/a',
        'inproc://',
    )
    daemon.wait_for('Degraded: database')
    daemon.popen.send_signal(signal.SIGUSR2)
    wait_until(lambda: 'Configuration' in sections(daemon.lines))
    text = ''.join(daemon.lines)
    assert '------ store-monitor (thread' in text
    assert 'loaded = False' in text
    assert 'hunter2' not in text
    assert daemon.popen.poll() is None
    assert daemon.end() == 0


@pytest.mark.broker
@pytest.mark.db
@pytest.mark.slow
def test_a_report_shows_an_engine_that_hangs_and_the_watchdog_starves(
    connect, launch, rabbitmq, postgresql, topic, tmp_path, told
):
    hang = tmp_path / 'hang'
    folder = tmp_path / 'reports'
    folder.mkdir()
    daemon = launch(
        ready_database(postgresql[1]),
        rabbitmq[1],
        f'{on_topic(topic)}{hanging_filter.CONFIG}'
        f'[oslo_reports]\nlog_dir = {folder}\n',
        NOTIFY_SOCKET=told.address,
        WATCHDOG_USEC=WATCHDOG_USEC,
        **{hanging_filter.FILE: str(hang)},
    )
    # Fed while it is idle, which is not for want of work.
    told.wait_for(b'READY=1')
    for _ in range(3):
        told.wait_for(FED)
    client = connect(rabbitmq[1], topic, timeout=LIMIT_S)
    hang.touch()
    named = {'flavor': SMALL, 'request_id': 'req-that-hangs'}
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(
            client.select_destinations(CONTEXT, named)
        )
    )
    thread.start()
    daemon.wait_for('The engine stands still')
    told.drain()
    time.sleep(2)
    assert told.drain() == []
    daemon.popen.send_signal(signal.SIGUSR2)
    daemon.wait_for('A report of the process is in')
    (report,) = folder.iterdir()
    text = report.read_text()
    assert {'Threads', 'Snapshot', 'Queue', 'Claims under way', 'Extenders',
            'Configuration'} <= set(sections(text.splitlines()))  # fmt: skip
    assert '------ engine (thread' in text
    assert 'hanging_filter.py' in text
    assert 'request_id = req-that-hangs' in text
    assert 'transport_url = ***' in text
    assert 'guest:guest' not in text
    # It goes on where it was.
    hang.unlink()
    thread.join()
    assert len(answers) == 1
    told.wait_for(FED)
    assert daemon.end() == 0
    told.wait_for(b'STOPPING=1')


@pytest.mark.broker
@pytest.mark.db
@pytest.mark.slow
def test_the_watchdog_is_fed_while_the_database_is_away(
    connect, launch, rabbitmq, postgresql, topic, told
):
    server, url = postgresql
    database = ready_database(url)
    with tcp_proxy(server.port) as proxy:
        daemon = launch(
            database.replace(f':{server.port}/', f':{proxy.port}/'),
            rabbitmq[1],
            on_topic(topic),
            NOTIFY_SOCKET=told.address,
            WATCHDOG_USEC=WATCHDOG_USEC,
        )
        told.wait_for(b'READY=1')
        told.wait_for(FED)
        proxy.become(Mode.BLACK_HOLE)
        daemon.wait_for('Degraded: database')
        told.drain()
        for _ in range(4):
            told.wait_for(FED)
        proxy.become(Mode.FORWARD)
        daemon.wait_for('Database reachable again')
        connect(rabbitmq[1], topic).ping(CONTEXT)
        assert not daemon.count('stands still')
        assert daemon.end() == 0


def test_systemd_is_told_of_start_and_end_and_nothing_without_a_watchdog(
    launch, ready_sqlite, told
):
    daemon = launch(
        ready_sqlite, 'inproc://', NOTIFY_SOCKET=told.address,
        WATCHDOG_USEC=WATCHDOG_USEC, WATCHDOG_PID='1',
    )  # fmt: skip
    daemon.wait_for('Ready: 4 hosts, 2 pools')
    assert daemon.end() == 0
    told.wait_for(b'READY=1')
    wait_until(lambda: b'STOPPING=1' in told._found)
    assert told.drain() == [b'STOPPING=1']


def test_a_report_during_the_imports_does_not_end_the_process(
    launch, ready_sqlite
):
    module = 'scheduler_service.cmd.service'
    daemon = launch(ready_sqlite, 'inproc://', module=module)
    wait_until(lambda: _ignores(daemon.popen.pid, signal.SIGUSR2))
    daemon.popen.send_signal(signal.SIGUSR2)
    daemon.popen.send_signal(signal.SIGHUP)
    daemon.wait_for('Ready:')
    assert daemon.end() == 0


def _ignores(pid, number):
    """Say whether a process has an answer to a signal."""
    with open(f'/proc/{pid}/status') as status:
        masks = dict(line.split(':\t') for line in status if ':\t' in line)
    wanted = 1 << (number - 1)
    return bool((int(masks['SigIgn'], 16) | int(masks['SigCgt'], 16)) & wanted)
