"""A daemon with an empty store waits for the compute service's hosts."""

import contextlib
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from scheduler_service.cmd.daemon import Daemon
from scheduler_service.compute.follower import mirror
from tests.support import processes
from tests.support.documents import CONTEXT, SMALL
from tests.support.http_client import HttpClient
from tests.support.nova_databases import NovaDatabases
from tests.support.placement_service import (
    PlacementService,
    daemon_options,
)
from tests.support.servers import free_port
from tests.support.services import connected, hosts_of, new_conf
from tests.support.stores import stored_host
from tests.support.tcp_proxy import Mode, TcpProxy, tcp_proxy
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.functional, pytest.mark.db]
ROOM = {'VCPU': 8, 'MEMORY_MB': 8192, 'DISK_GB': 100}


@pytest.fixture
def nova(nova_base: NovaDatabases) -> NovaDatabases:
    """The same, with nothing but the mappings of its cells."""
    nova_base.reset()
    return nova_base


@pytest.fixture
def store(make_store: Any) -> Any:
    """Our own database, which is empty."""
    return make_store('postgresql')


class Starting:
    """A daemon in this process, the start of which a thread waits for."""

    def __init__(self, conf: Any) -> None:
        self.url = f'inproc://{uuid.uuid4().hex}/'
        self.daemon = Daemon(conf, self.url)
        self._is_stopped = False
        self._topic = conf.scheduler.topic
        self._threads = ThreadPoolExecutor(2)
        self._start = self._threads.submit(self.daemon.start)

    @property
    def is_done(self) -> bool:
        """Whether it takes requests."""
        return self._start.done()

    def waits_for(self, words: str) -> None:
        """Wait until it says that it waits for something."""
        health = self.daemon.scheduler.health
        wait_until(
            lambda: any(f'before {words}' in one for one in health.degraded),
        )

    def ask(self) -> Any:
        """Send a request; return a future of the hosts that it gets."""
        return self._threads.submit(self._select)

    def _select(self) -> list[str]:
        with connected(self.url, self._topic, timeout=LIMIT_S) as client:
            answer = client.select_destinations(CONTEXT, {'flavor': SMALL})
        return hosts_of(answer)

    def wait(self) -> None:
        """Wait until it takes requests."""
        self._start.result(LIMIT_S)

    def stop(self) -> None:
        """Stop it, unless that was done before."""
        if not self._is_stopped:
            self._is_stopped = True
            self.daemon.stop()
            self._threads.shutdown()


@pytest.fixture
def start(nova: NovaDatabases, store: Any) -> Iterator[Callable[..., Any]]:
    """Give a function that starts a daemon on the store."""
    running: list[Starting] = []

    def make(service: PlacementService | None = None, **more: Any) -> Starting:
        options = {
            'database__connection': store.engine.url.render_as_string(
                hide_password=False
            ),
            'compute__api_database': nova.api,
            **more,
        }
        if service is None:
            conf = new_conf(**options)
        else:
            conf = daemon_options(
                service, compute__use_placement=True, **options
            )
        running.append(Starting(conf))
        return running[-1]

    yield make
    for one in running:
        one.stop()


@pytest.fixture
def proxy(nova: NovaDatabases) -> Iterator[TcpProxy]:
    """A proxy to the server of the databases, which refuses connections."""
    port = make_url(nova.api).port
    assert port is not None
    with tcp_proxy(port) as made:
        made.become(Mode.REFUSE)
        yield made


def through(proxy: TcpProxy, url: str) -> str:
    """Return the URL of a database behind a proxy."""
    near = make_url(url).set(host='127.0.0.1', port=proxy.port)
    return near.render_as_string(hide_password=False)


@contextlib.contextmanager
def locked_nodes(nova: NovaDatabases) -> Iterator[None]:
    """Keep everybody from reading the compute nodes of the first cell."""
    engine = sa.create_engine(nova.cells[0])
    try:
        with engine.begin() as conn:
            conn.exec_driver_sql(
                'LOCK TABLE compute_nodes IN ACCESS EXCLUSIVE MODE'
            )
            yield
    finally:
        engine.dispose()


def waiting_reads(nova: NovaDatabases) -> int:
    """Return how many sessions wait for a lock of the first cell."""
    engine = sa.create_engine(nova.cells[0])
    query = (
        'SELECT count(*) FROM pg_stat_activity '
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    try:
        with engine.connect() as conn:
            return int(conn.exec_driver_sql(query).scalar_one())
    finally:
        engine.dispose()


def test_a_request_waits_until_the_first_pass_is_complete(nova, store, start):
    nova.add_host('other-cell', cell=2, vcpus=0)
    nova.add_host('c1')
    with locked_nodes(nova):
        # One cell is read and the other is not.
        first = start(compute__statement_timeout=LIMIT_S)
        wait_until(lambda: waiting_reads(nova))
        first.waits_for("the compute service's databases")
        second = start(compute__statement_timeout=LIMIT_S)
        second.waits_for("the compute service's databases")
        answers = [first.ask(), second.ask()]
        assert not first.is_done
        assert not second.is_done
    assert [answer.result(LIMIT_S) for answer in answers] == [['c1'], ['c1']]
    assert first.daemon.scheduler.health.degraded == []


def test_a_store_that_was_filled_is_used_at_once(nova, store, start, proxy):
    nova.add_host('c1')
    first = start()
    first.wait()
    first.stop()
    second = start(compute__api_database=through(proxy, nova.api))
    second.wait()
    assert second.ask().result(LIMIT_S) == ['c1']


def test_a_cloud_without_hosts_does_not_hold_up_the_start(start):
    start().wait()


def test_a_cell_that_fails_does_not_hold_up_the_start(nova, store, start):
    nova.add_host('c1')
    nova.update(
        nova.api, 'cell_mappings', {'name': 'cell2'},
        database_connection=f'postgresql://a@127.0.0.1:{free_port()}/a',
    )  # fmt: skip
    one = start()
    one.wait()
    assert one.ask().result(LIMIT_S) == ['c1']
    degraded = one.daemon.scheduler.health.degraded
    assert any('cell2 is left out' in text for text in degraded)


def test_a_start_waits_while_every_cell_is_away(nova, start, proxy):
    nova.add_host('c1')
    urls = [through(proxy, url) for url in nova.cells]
    for name, url in zip(('cell1', 'cell2'), urls, strict=True):
        nova.update(
            nova.api, 'cell_mappings', {'name': name}, database_connection=url
        )
    one = start()
    one.waits_for("the compute service's databases")
    wait_until(
        lambda: any(
            'is left out' in text
            for text in one.daemon.scheduler.health.degraded
        ),
    )
    # A look at no cell at all does not end the wait.
    time.sleep(1.5)
    assert not one.is_done
    proxy.become(Mode.FORWARD)
    assert one.ask().result(LIMIT_S) == ['c1']


def test_requests_wait_for_capacity_from_placement(
    nova, store, start, service
):
    service.add_provider(nova.add_host('c1'), 'c1', **ROOM)
    service.stop()
    try:
        one = start(service)
        one.waits_for('resource providers')
        assert stored_host(store, 'c1').vcpus == 0
        assert not one.is_done
    finally:
        service.start()
    assert one.ask().result(LIMIT_S) == ['c1']


def test_placement_that_stays_away_does_not_hold_up_the_start(
    nova, store, start, service, monkeypatch
):
    monkeypatch.setattr(mirror, 'PLACEMENT_WAIT_S', 1.0)
    name = f'h{uuid.uuid4().hex}'
    service.add_provider(nova.add_host(name), name, **ROOM)
    service.stop()
    try:
        one = start(service)
        one.wait()
    finally:
        service.start()
    wait_until(lambda: stored_host(store, name).vcpus == 8)


def test_an_api_database_that_is_away_is_waited_for(
    nova, store, proxy, tmp_path
):
    nova.add_host('c1')
    port = free_port()
    config = tmp_path / 'scheduler.conf'
    url = store.engine.url.render_as_string(hide_password=False)
    config.write_text(
        f'[DEFAULT]\ntransport_url = inproc://\n'
        f'[database]\nconnection = {url}\n'
        f'[http]\nbind_port = {port}\n'
        f'[compute]\napi_database = {through(proxy, nova.api)}\n'
    )
    for comes_back in (False, True):
        process = processes.launch(config)
        try:
            process.wait_for('Degraded: no requests are accepted')
            process.wait_for('API database of the compute service')
            with contextlib.closing(HttpClient(None, port)) as http:
                status, ready = http.send('GET', '/readyz')
            assert (status, ready['snapshot']) == (503, 'bad')
            assert any('requests' in text for text in ready['degraded'])
            assert process.count('Ready') == 0
            if comes_back:
                proxy.become(Mode.FORWARD)
                process.wait_for('Ready: 1 hosts')
            assert process.count('Degraded: no requests are accepted') == 1
            assert process.end(signal.SIGTERM) == 0
        finally:
            process.remove()
