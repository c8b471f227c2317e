"""What PostgreSQL's driver raises, in the store's own words."""

from __future__ import annotations

import pytest
from oslo_db import exception as db_exception

from scheduler_service import errors
from scheduler_service.store import driver, rows
from scheduler_service.store.connection import Store

pytestmark = pytest.mark.db
RAISED = "DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{}'; END $$"


@pytest.fixture
def store(make_store) -> Store:
    return make_store('postgresql')


@pytest.fixture
def single(store):
    with store.hold() as conn:
        yield conn.execution_options(isolation_level='AUTOCOMMIT')


def test_the_value_comes_back(single):
    assert driver.scalar(single, 'SELECT %(n)s + 1', {'n': 41}) == 42


def test_what_is_refused_has_its_state(single):
    with pytest.raises(driver.Refused) as caught:
        driver.scalar(single, 'SELECT 1 / 0', {})
    assert caught.value.sqlstate == '22012'
    # The connection is as good as before.
    assert driver.scalar(single, 'SELECT 1', {}) == 1


@pytest.mark.parametrize(
    ('state', 'kind', 'reason'),
    [
        ('40P01', db_exception.DBDeadlock, 'deadlock'),
        ('40001', db_exception.DBError, 'serialization'),
    ],
)
def test_collisions_are_tried_again_and_counted(
    store, single, state, kind, reason
):
    counted = []
    store.on_retry = counted.append
    tried = []

    def work() -> int:
        tried.append(1)
        if len(tried) < 3:
            driver.scalar(single, RAISED.format(state), {})
        return 7

    assert store.once(work) == 7
    assert counted == [reason] * 2
    with pytest.raises(kind):
        driver.scalar(single, RAISED.format(state), {})


@pytest.mark.parametrize('state', ['57P01', '53100', '08006'])
def test_a_server_in_trouble_is_away(single, state):
    with pytest.raises(errors.StoreUnavailable):
        driver.scalar(single, RAISED.format(state), {})


def test_a_lost_connection_is_away(store, single):
    pid = driver.scalar(single, 'SELECT pg_backend_pid()', {})
    with store.reading() as other:
        other.exec_driver_sql(f'SELECT pg_terminate_backend({pid})')
    for _ in range(2):
        with pytest.raises(errors.StoreUnavailable):
            driver.scalar(single, 'SELECT 1', {})


@pytest.mark.parametrize(
    ('kind', 'values'),
    [
        ('text', ['a"\\b\n,{}', 'h\u00f6st', None, '', 'NULL']),
        ('text', [None, None]),
        ('int', [0, -1, 2**62, None]),
        ('float', [0.5, -1e300, None]),
        ('text', []),
    ],
)
def test_columns_arrive_as_they_are(single, kind, values):
    columns = {'number': 'int', 'value': kind}
    sent = [{'number': at, 'value': value} for at, value in enumerate(values)]
    source = rows.source('postgresql', columns)
    packed = rows.pack('postgresql', columns, sent)
    statement = f'SELECT value FROM {source} ORDER BY number'
    for name in packed:
        statement = statement.replace(f':{name} ', f'%({name})s ')
    raw = single.connection.dbapi_connection
    with raw.cursor() as cursor:
        found = cursor.execute(statement, packed).fetchall()
    assert [value for (value,) in found] == values
