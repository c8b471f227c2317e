"""Connections that die without a word, while the database works."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.engine.store_monitor import StoreMonitor
from scheduler_service.store.connection import Store, translate_errors
from scheduler_service.store.timeouts import Timeouts
from tests.support.tcp_proxy import through_proxy

pytestmark = pytest.mark.db

LOCK = sa.text("UPDATE counters SET value = value WHERE name = 'revision'")
SERVERS = ['postgresql', 'mariadb']
# Sooner than any limit but that of a connection that is made, which is 3 s.
SOON_S = 8.0


@contextlib.contextmanager
def watched(store: Store) -> Iterator[None]:
    """Watch the database as a daemon does."""
    monitor = StoreMonitor(store, Health(), retry_s=1.0)
    monitor.start()
    try:
        yield
    finally:
        monitor.stop(5)


@pytest.mark.parametrize('kind', SERVERS)
def test_locks_are_free_when_the_connection_of_their_holder_dies(
    kind, make_url
):
    url = make_url(kind)
    well = Store.connect(url, Timeouts(lock=60, idle_transaction=60))
    with through_proxy(url) as (proxy, near):
        sick = Store.connect(near, Timeouts(lock=60, idle_transaction=60))
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
    kind, words, make_url
):
    with through_proxy(make_url(kind)) as (proxy, near):
        store = Store.connect(near)
        proxy.freeze_after(words)
        start = time.monotonic()
        with pytest.raises(errors.StoreUnavailable):
            store.hold()
        assert time.monotonic() - start < SOON_S
        with store.reading() as conn:
            assert conn.execute(sa.text('SELECT 1')).scalar_one() == 1
        store.dispose()


def test_wait_is_broken_off_when_half_a_statement_arrived(make_url):
    with through_proxy(make_url('postgresql')) as (proxy, near):
        store = Store.connect(near)
        with watched(store), store.hold() as conn:
            proxy.freeze_after(b'half of this')
            start = time.monotonic()
            text = sa.text('SELECT CAST(:value AS text)')
            with pytest.raises(errors.StoreUnavailable), translate_errors():
                conn.execute(text, {'value': 'only half of this comes'})
            assert time.monotonic() - start < SOON_S
        store.dispose()
