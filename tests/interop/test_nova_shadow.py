"""A shadow beside nova-scheduler of the index, on requests of a mix.

``SCHEDULER_TEST_SHADOW_REQUESTS`` says how many come one after the other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from scheduler_service.bus.listener import HUNG_S
from scheduler_service.store.connection import Store
from scheduler_service.store.records import shadow
from tests.support import processes, servers, shipped
from tests.support.databases import migrated_database
from tests.support.nova_cloud import NovaCloud
from tests.support.nova_databases import NovaDatabases
from tests.support.placement_service import placement_service
from tests.support.request_mix import Mix
from tests.support.shadows import SINCE, Both
from tests.support.tcp_proxy import Mode, through_proxy
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.db]
# A thousand take ten minutes or more.
REQUESTS = int(os.environ.get('SCHEDULER_TEST_SHADOW_REQUESTS', '200'))
CLASSIC = 'amqp_durable_queues = false\nrabbit_quorum_queue = false\n'
ALIKE = {('same', ''), ('equal', '')}


@pytest.fixture
def nova(mariadb, rabbitmq, make_store, tmp_path):
    """nova-scheduler and what sends it requests, without any computes."""
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(placement_service(mariadb[1]))
        databases = NovaDatabases(mariadb[1])
        stack.callback(databases.close)
        made = Both(databases, service, make_store, rabbitmq, 'scheduler')
        stack.callback(made.close)
        databases.reset()
        made.map_cell0()
        cloud = NovaCloud(tmp_path, databases, made.url, service, 'http://-')
        stack.callback(cloud.stop)
        for number in range(12):
            made.add_host(64, 131072 - 1024 * number, 1000, stats='{}')
        cloud.start_api()
        stack.enter_context(cloud.scheduler())
        yield made, cloud


def counted(both):
    """Return how many requests the shadow has compared."""
    counters = both.shadow.scheduler.health.counters()
    return sum(counters.get('shadow_verdicts', {}).values())


def test_both_agree_on_what_comes_one_after_the_other(nova):
    both, cloud = nova
    both.start_shadow()
    mix = Mix(
        both, cloud, 63,
        # nova-scheduler reads the rows of all hosts for each request.
        ready=lambda mix: wait_until(mix.is_read),
        settle=lambda mix: wait_until(lambda: counted(both) >= mix.asked),
    )  # fmt: skip
    while mix.asked < REQUESTS:
        mix.next()
    found = both.wait_for(mix.asked)
    print(both.report()['summary'], mix.kinds)
    alike = sum(found.get(key, 0) for key in ALIKE)
    assert alike >= 0.99 * mix.asked, both.report()
    # Each of the others has its cause. On a busy machine a request may come
    # here when that scheduler has decided already: it counts as in flight.
    others = found.keys() - ALIKE - {('in flight', '')}
    assert all(cause for _, cause in others)


def test_requests_that_are_in_flight_together_are_judged_by_refusals(nova):
    both, cloud = nova
    both.start_shadow()
    mix, made = Mix(both, cloud, 63), []
    for number in range(100):
        kind = 'build' if number % 5 else 'refused by a filter'
        uuids, *rest = mix.new(kind)
        made.append((uuids, f'req-{number}', mix.spec(uuids, *rest)))
    with ThreadPoolExecutor(10) as threads:
        asked = [threads.submit(both.ask, *each) for each in made]
        refused = sum(each.result() == [] for each in asked)
    found = both.wait_for(len(made))
    print(both.report()['summary'])
    assert found['in flight', ''] > 0
    assert found.get(('same', ''), 0) >= refused > 0
    assert not {'refuses', 'places'} & {verdict for verdict, _ in found}


class Beside:
    """A shadow as a process, with proxies before its databases."""

    def __init__(self, cloud, folder, url, own, api):
        self.store = Store.connect(url)
        self._own, self._api = own[0], api[0]
        text = shipped.of_cloud(cloud, own[1], CLASSIC)
        text = text.replace(cloud.databases.api, api[1])
        self._config = folder / 'scheduler_service.conf'
        self._config.write_text(
            text.replace('\nenabled = false', '\nshadow = true')
        )
        self.process = None

    def start(self):
        self.process = processes.launch(self._config)
        self.process.wait_for('Ready')

    def signal(self, number):
        self.process.popen.send_signal(number)

    def become(self, mode):
        """Have both databases answer in another way."""
        self._own.become(mode)
        self._api.become(mode)

    def report(self):
        with self.store.reading() as conn:
            return shadow.report(conn, SINCE)

    def catch_up(self):
        """Wait until all instances that are there now are counted."""
        now = time.time()

        def is_done():
            with self.store.reading() as conn:
                return (shadow.read_until(conn) or 0) > now

        wait_until(is_done, pause_s=0.2)

    def close(self):
        self.become(Mode.FORWARD)
        self.store.dispose()
        if self.process is not None:
            self.process.remove()


@pytest.fixture
def beside(nova, mariadb, tmp_path):
    url = migrated_database(mariadb[1])
    api = nova[0].cloud.api
    with through_proxy(url) as own, through_proxy(api) as proxied:
        made = Beside(nova[1], tmp_path, url, own, proxied)
        yield made
        made.close()


def test_nothing_of_the_scheduler_in_charge_is_lost_or_late(
    nova, beside, rabbitmq
):
    both, cloud = nova
    mix, spent, asked = Mix(both, cloud, 63), {}, 0
    server = rabbitmq[0]

    def ask(name, number=10, at_once=1):
        """Ask for hosts; return how many requests that were."""

        def timed(uuids, spec):
            start = time.monotonic()
            (host,) = both.ask(uuids, '', spec)
            return host, time.monotonic() - start

        both.keep_alive()
        made = [mix.new('build') for _ in range(number)]
        specs = [mix.spec(*each) for each in made]
        start = time.monotonic()
        with ThreadPoolExecutor(at_once) as threads:
            found = [*threads.map(timed, [each[0] for each in made], specs)]
        rate = number / (time.monotonic() - start)
        median = statistics.median(took for _, took in found)
        print(f'{name}: {rate:.1f} in a second, each {median:.2f} s')
        spent[name] = median / at_once
        for (uuids, flavor, _), (host, _) in zip(made, found, strict=True):
            if 'alone' not in name:
                both.cloud.add_instance(host, uuid=uuids[0])
                both.count(host, flavor)
        return number

    ask('alone')
    ask('ten at once, alone', 50, 10)
    beside.start()
    asked += ask('beside')
    asked += ask('ten at once, beside', 50, 10)
    beside.signal(signal.SIGSTOP)
    asked += ask('stopped')
    stopped_at = time.monotonic()
    wait_until(lambda: time.monotonic() - stopped_at > HUNG_S)
    beside.signal(signal.SIGCONT)
    for name, mode in ('slow', Mode.BLACK_HOLE), ('away', Mode.REFUSE):
        beside.become(mode)
        asked += ask(name)
        beside.become(Mode.FORWARD)
    both.reconnect()
    for command in 'stop_app', 'start_app':
        servers.rabbitmqctl(server, command)
    wait_until(
        lambda: 'scheduler' in servers.names_in(server, both.url, 'queues')
    )
    asked += ask('restarted')
    # Requests of the last seconds would count as not received, too.
    beside.catch_up()
    beside.signal(signal.SIGKILL)
    asked += ask('killed')
    beside.start()
    beside.catch_up()
    report = beside.report()
    print(report['summary'])
    assert sum(row['requests'] for row in report['shadow']) == asked
    missed = {row['verdict']: row['requests'] for row in report['shadow']}
    assert missed['not received'] >= 20
    assert max(spent.values()) < 2 * spent['alone'] + 0.5
