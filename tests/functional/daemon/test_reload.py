"""A daemon process that reads its configuration anew while it serves."""

import signal
import socket
import threading
import time
from datetime import UTC, datetime

import pytest

from scheduler_service.store.connection import Store
from scheduler_service.store.records import daemons
from tests.support.databases import migrated_database
from tests.support.documents import CONTEXT, DEFAULT_POOL
from tests.support.processes import on_topic
from tests.support.services import hosts_of
from tests.support.stores import import_inventory
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.db]

# Four hosts; the first two are one half, the last two the other.
HOSTS = {
    'pools': [{'id': DEFAULT_POOL, 'name': 'default'}],
    'hosts': [
        {'host': f'h{n}', 'vcpus': 9999, 'memory_mb': 10**6 * n,
         'local_gb': 9999, 'ram_allocation_ratio': 1.0}
        for n in range(1, 5)
    ],
}  # fmt: skip
TINY = {'vcpus': 1, 'memory_mb': 1}
# Each selects the best host of one half. Filters of one and weights of the
# other would select h1 or h4.
FIRST = """
[filter_scheduler]
enabled_filters = RamFilter,IsolatedHostsFilter
isolated_hosts = h3,h4
ram_weight_multiplier = 1.0
weight_classes = RAMWeigher
"""
SECOND = """
[filter_scheduler]
enabled_filters = IsolatedHostsFilter,CoreFilter
isolated_hosts = h1,h2
ram_weight_multiplier = -1.0
weight_classes = RAMWeigher
"""


DONE = 'Configuration reloaded', 'configuration cannot be used'


class Running:
    """A daemon process whose configuration file changes."""

    def __init__(self, launch, path, store):
        self.path = path
        self.store = store
        self._launch = launch

    def start(self, text, **env):
        self.process = self._launch(text, **env)
        self._head = self.path.read_text().removesuffix(f'{text}\n')
        self.process.wait_for('Ready:')

    def reload(self, text, whole=False):
        """Reload with other lines; return what the log says of it.

        :param text: None: the file is gone
        :param whole: the lines are all that the file has
        """
        if text is None:
            self.path.unlink()
        else:
            self.path.write_text(text if whole else self._head + text)
        before = len(self._ended())
        self.process.popen.send_signal(signal.SIGHUP)
        return wait_until(lambda: self._ended()[before:])[0]

    def _ended(self):
        return [
            line
            for line in self.process.lines
            if any(text in line for text in DONE)
        ]


@pytest.fixture
def running(launch, rabbitmq, postgresql, topic, tmp_path):
    database = migrated_database(postgresql[1])
    store = Store.connect(database)
    import_inventory(store, HOSTS)

    def start(text, **env):
        return launch(database, rabbitmq[1], on_topic(topic) + text, **env)

    yield Running(start, tmp_path / '0.conf', store)
    store.dispose()


def test_no_request_is_lost_or_decided_half_by_each_configuration(
    running, connect, rabbitmq, topic
):
    running.start(FIRST)
    client = connect(rabbitmq[1], topic, timeout=LIMIT_S)
    chosen, failed = [], []
    stop = threading.Event()

    def ask(size):
        while not stop.is_set():
            try:
                answer = client.select_destinations(
                    CONTEXT, {'flavor': TINY, 'num_instances': size}
                )
                chosen.append(frozenset(hosts_of(answer)))
            except BaseException as fault:
                failed.append(fault)

    def ask_many():
        entries = [
            {'select_destinations': {'flavor': TINY}} for _ in range(100)
        ]
        while not stop.is_set():
            try:
                answers = client.schedule_many(CONTEXT, entries)
                chosen.extend(
                    frozenset(hosts_of(answer['result'])) for answer in answers
                )
            except BaseException as fault:
                failed.append(fault)

    threads = [threading.Thread(target=ask, args=(n,)) for n in (1, 1, 3)]
    threads.append(threading.Thread(target=ask_many))
    for thread in threads:
        thread.start()
    for text in [SECOND, FIRST] * 2:
        wait_until(lambda: failed or len(chosen) > 20)
        line = running.reload(text)
        changed = (
            'added CoreFilter; removed RamFilter'
            if text is SECOND
            else 'added RamFilter; removed CoreFilter'
        )
        assert f'[filter_scheduler] enabled_filters: {changed}, [f' in line
        before = len(chosen)
        expected = frozenset(('h2' if text is FIRST else 'h3',))
        # Those that were under way as the reload ended are answered before.
        wait_until(lambda: failed or expected in chosen[before:])  # noqa: B023
    stop.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert set(chosen) == {frozenset(('h2',)), frozenset(('h3',))}


def test_a_configuration_with_faults_changes_nothing(
    running, connect, rabbitmq, topic
):
    running.start(FIRST)
    client = connect(rabbitmq[1], topic)
    file = str(running.path)
    wrong = SECOND.replace('CoreFilter', 'CoreFiltre')
    line = running.reload(wrong)
    assert (
        f'the running one stays in force: [filter_scheduler] enabled_filters '
        f'({file}): Unknown filter: CoreFiltre (did you mean CoreFilter?)'
    ) in line
    values = f'{SECOND}host_subset_size = none\n[extender]\nthreads = 0\n'
    line = running.reload(values)
    assert f'[filter_scheduler] host_subset_size ({file}): ' in line
    assert f'[extender] threads ({file}): ' in line
    line = running.reload('[broken\n')
    assert file in line
    assert file in running.reload(None)
    # A full disk, or an editor that empties the file before it writes.
    line = running.reload('', whole=True)
    assert '[database] connection is not set' in line
    line = running.reload(f'{SECOND}[database]\nlock_timeout =\n')
    assert f'[database] lock_timeout ({file}): it needs a value' in line
    # The library that reads the command line as well ended the thread.
    line = running.reload(f'{SECOND}[DEFAULT]\ndebug = word\n')
    assert f'[DEFAULT] debug ({file}): ' in line
    # What only a restart would use: the running daemon has no such port.
    line = running.reload(f'{SECOND}[http]\nbind_port = 1\nkey_file = a\n')
    assert '[http] key_file also needs cert_file' in line
    answer = client.select_destinations(CONTEXT, {'flavor': TINY})
    assert hosts_of(answer) == ['h2']
    status = client.ping(CONTEXT)
    assert status['counters']['reloads'] == {'refused': 8}
    assert status['reload_refused'] is True
    refused = 'the last reload was refused: the files cannot be used, and a '

    def listed():
        with running.store.reading() as conn:
            (row,) = daemons.rows(conn, daemons.listing(conn))
        return row

    wait_until(
        lambda: listed()['degraded'] == [f'{refused}restart would fail']
    )
    since = datetime.fromisoformat(listed()['degraded_since'])
    assert 0 < (datetime.now(UTC) - since).total_seconds() < LIMIT_S
    running.reload(SECOND)
    assert client.ping(CONTEXT)['reload_refused'] is False
    wait_until(lambda: listed()['degraded'] == [])
    assert listed()['degraded_since'] is None


def test_options_that_need_a_restart_are_named_and_stay(
    running, connect, rabbitmq, topic
):
    running.start(FIRST)
    more = '[http]\nbind_port = 1\n[oslo_messaging_rabbit]\nssl = true\n'
    line = running.reload(f'{SECOND}{more}[DEFAULT]\ndebug = true\n')
    assert '[DEFAULT] debug: False -> True, [filter_scheduler] ' in line
    assert 'bind_port' not in line
    running.process.wait_for(
        'These options need a restart: [http] bind_port: None -> 1, '
        '[oslo_messaging_rabbit] ssl: False -> True'
    )
    answer = connect(rabbitmq[1], topic).select_destinations(
        CONTEXT, {'flavor': TINY}
    )
    assert hosts_of(answer) == ['h3']
    # As it was at the start: nothing waits for a restart any more.
    running.reload(FIRST)
    assert running.process.count('need a restart') == 1


def test_systemd_is_told_of_a_reload_by_its_clock(running, tmp_path):
    address = str(tmp_path / 'notify')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(address)
        told.settimeout(LIMIT_S)
        running.start(FIRST, NOTIFY_SOCKET=address)
        assert told.recv(100) == b'READY=1'
        for text in (SECOND, '[broken'):
            before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            running.reload(text)
            first, _, clock = told.recv(100).decode().partition('\n')
            assert first == 'RELOADING=1'
            name, _, value = clock.partition('=')
            assert name == 'MONOTONIC_USEC'
            after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            assert before <= int(value) <= after
            assert told.recv(100) == b'READY=1'
