"""Connections that die without a word, while the database works."""

import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exception
from sqlalchemy.engine import make_url as parse_url

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.store.connection import Store
from scheduler_service.store.driver_errors import translate_errors
from scheduler_service.store.sessions import Timeouts, Wait, is_sending
from scheduler_service.store.workers.store_monitor import Probe, StoreMonitor
from tests.support.tcp_proxy import through_proxy
from tests.support.waiting import LIMIT_S, SLOWNESS

pytestmark = pytest.mark.db

LOCK = sa.text("UPDATE counters SET value = value WHERE name = 'revision'")
SERVERS = ['postgresql', 'mariadb']
# Sooner than any limit but that of a connection that is made, which is 3 s.
SOON_S = 60.0 * SLOWNESS
LIMITS = Timeouts(lock=120, statement=120, idle_transaction=120)


@contextlib.contextmanager
def watched(store: Store) -> Iterator[None]:
    """Watch the database as a daemon does."""
    monitor = StoreMonitor(store, Health(), retry_s=1.0)
    monitor.start()
    try:
        yield
    finally:
        monitor.stop(LIMIT_S)


@pytest.mark.parametrize('kind', SERVERS)
def test_locks_are_free_when_the_connection_of_their_holder_dies(
    kind, shared_url
):
    url = shared_url(kind)
    well = Store.connect(url, LIMITS)
    with through_proxy(url) as (proxy, near):
        sick = Store.connect(near, LIMITS)
        lost: list[Exception] = []

        def hold_lock() -> None:
            try:
                with sick.reading() as conn, conn.begin():
                    conn.execute(LOCK)
                    proxy.freeze()
                    conn.execute(LOCK)
            except errors.StoreUnavailable as error:
                lost.append(error)

        with watched(sick):
            thread = threading.Thread(target=hold_lock)
            start = time.monotonic()
            thread.start()
            thread.join(SOON_S)
            well.write(lambda writer: writer.touched.instances.append('a'))
            assert time.monotonic() - start < SOON_S
        assert len(lost) == 1
        sick.dispose()
    well.dispose()


@pytest.mark.parametrize(
    ('kind', 'words'),
    [('postgresql', b'plan_cache_mode'), ('mariadb', b'CONNECTION_ID')],
)
def test_connection_is_given_up_when_it_dies_while_it_is_set_up(
    kind, words, shared_url
):
    url = parse_url(shared_url(kind))
    if kind == 'mariadb':
        # From 11.4 on it offers TLS, and then the proxy sees no words.
        url = url.update_query_dict({'ssl_disabled': 'true'})
    with through_proxy(url.render_as_string(False)) as (proxy, near):
        store = Store.connect(near, LIMITS)
        proxy.freeze_after(words)
        start = time.monotonic()
        with pytest.raises(errors.StoreUnavailable):
            store.hold()
        assert time.monotonic() - start < SOON_S
        with store.reading() as conn:
            assert conn.execute(sa.text('SELECT 1')).scalar_one() == 1
        store.dispose()


def test_wait_is_broken_off_when_half_a_statement_arrived(shared_url):
    with through_proxy(shared_url('postgresql')) as (proxy, near):
        store = Store.connect(near, LIMITS)
        with watched(store), store.hold() as conn:
            proxy.freeze_after(b'half of this')
            start = time.monotonic()
            text = sa.text('SELECT CAST(:value AS text)')
            with pytest.raises(errors.StoreUnavailable), translate_errors():
                conn.execute(text, {'value': 'only half of this comes'})
            assert time.monotonic() - start < SOON_S
        store.dispose()


@pytest.fixture
def modest(make_store) -> str:
    """Return a URL with an account that may do nothing but use a database."""
    url = make_store('mariadb').engine.url.render_as_string(False)
    parsed = parse_url(url)
    name = f'u{uuid.uuid4().hex[:12]}'
    engine = sa.create_engine(url)
    with engine.begin() as conn:
        for statement in (
            f"CREATE USER '{name}'@'127.0.0.1' IDENTIFIED BY 'secret'",
            f"GRANT ALL ON {parsed.database}.* TO '{name}'@'127.0.0.1'",
        ):
            conn.exec_driver_sql(statement)
    engine.dispose()
    return parsed.set(username=name, password='secret').render_as_string(False)


def test_wait_for_a_lock_goes_on_when_nobody_may_see_who_has_it(modest):
    store = Store.connect(modest, Timeouts(lock=30))
    health = Health()
    monitor = StoreMonitor(store, health, retry_s=1.0)
    monitor.start()
    with store.reading() as holding, holding.begin():
        holding.execute(LOCK)
        thread = threading.Thread(
            target=store.write,
            args=(lambda writer: writer.touched.instances.append('a'),),
        )
        thread.start()
        time.sleep(3)
        assert thread.is_alive()
        assert health.database_reachable
    thread.join(SOON_S)
    monitor.stop(LIMIT_S)
    with store.reading() as conn:
        changes = sa.text('SELECT count(*) FROM changes')
        assert conn.execute(changes).scalar_one() == 1
    store.dispose()


@pytest.mark.parametrize('kind', SERVERS)
def test_only_the_session_itself_is_ended(kind, shared_url):
    """Another server, or a later start of it, numbers its sessions anew."""
    store = Store.connect(shared_url(kind))
    probe = Probe(store)
    with store.hold() as conn:
        session = conn.connection.dbapi_connection
        own = Wait(session, session.server_id, time.monotonic())
        before = own._replace(since=time.monotonic() - 1e6)
        server, session.server = session.server, 'another'
        probe.end([own])
        session.server = server
        probe.end([before])
        assert conn.execute(sa.text('SELECT 1')).scalar_one() == 1
        probe.end([own])
        with pytest.raises(db_exception.DBError):
            conn.execute(sa.text('SELECT 1'))
    probe.close()
    store.dispose()


def test_statement_that_is_still_being_sent_is_no_dead_one():
    near, far = socket.socketpair()
    with near, far:
        assert not is_sending(near.fileno())
        near.send(b'words')
        assert is_sending(near.fileno())
        far.recv(5)
        assert not is_sending(near.fileno())
