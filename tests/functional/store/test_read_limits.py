"""Readings that have a time limit of their own."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.store import mysql, postgresql
from scheduler_service.store.connection import Store
from scheduler_service.store.sessions import Timeouts

SLEEP = {'postgresql': 'SELECT pg_sleep(20)', 'mariadb': 'SELECT SLEEP(20)'}
LIMIT = {
    'postgresql': ('SHOW statement_timeout', '9s'),
    'mariadb': ('SELECT @@max_statement_time', 9),
}


@pytest.mark.db
@pytest.mark.parametrize('kind', SLEEP)
def test_a_limit_ends_a_statement_and_then_counts_no_more(
    kind: str, shared_url: Callable[[str], str]
) -> None:
    store = Store.connect(shared_url(kind), Timeouts(statement=9))
    query, usual = LIMIT[kind]

    def limit(seconds: float | None = None) -> Any:
        with store.reading(seconds) as conn:
            return conn.exec_driver_sql(query).scalar()

    assert limit() == usual
    assert limit(5.0) != usual
    assert limit() == usual
    with pytest.raises(errors.StoreTimeout), store.reading(0.2) as conn:
        conn.exec_driver_sql(SLEEP[kind])
    assert limit() == usual
    store.dispose()


@pytest.mark.db
@pytest.mark.parametrize(
    ('kind', 'driver'), [('postgresql', postgresql), ('mariadb', mysql)]
)
def test_limits_may_change_while_a_connection_is_made(
    kind: str,
    driver: Any,
    shared_url: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store.connect(shared_url(kind), Timeouts(statement=8))
    query, changed = LIMIT[kind]
    later = Timeouts(statement=9)
    set_up = driver.set_up

    def set_up_meanwhile(session: Any, limits: Timeouts) -> None:
        set_up(session, limits)
        store.timeouts = later

    monkeypatch.setattr(driver, 'set_up', set_up_meanwhile)
    with store.reading() as conn:
        assert conn.exec_driver_sql(query).scalar() == changed
    store.dispose()


def test_sqlite_ends_what_is_read_for_too_long(tmp_path: pathlib.Path) -> None:
    store = Store.connect(f'sqlite:///{tmp_path}/store')
    count = 'WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n'

    def read(rows: float, seconds: float | None) -> Any:
        query = f'{count} WHERE x < {rows}) SELECT count(*) FROM n'
        with store.reading(seconds) as conn:
            return conn.exec_driver_sql(query).scalar()

    with pytest.raises(errors.StoreTimeout):
        read(1e12, 0.2)
    # It counts no more where nothing is said.
    assert read(1_000_000, None) == 1_000_000
    with pytest.raises(errors.StoreTimeout):
        read(1e12, 0.2)
    store.dispose()
