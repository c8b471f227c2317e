"""Transactions on a connection that stays open."""

from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.store import schema
from scheduler_service.store.connection import (
    PersistentWriter,
    Store,
    Writer,
)


@pytest.fixture(params=['postgresql', 'mariadb'])
def store(request: Any, make_store: Any) -> Any:
    """A store on a database server."""
    return make_store(request.param)


@pytest.fixture
def writer(store: Any) -> Any:
    """A writer of the store."""
    made = PersistentWriter(store)
    yield made
    made.drop()


def session(writer: Writer) -> int:
    """Return the server's number of the session."""
    kind = writer.conn.dialect.name
    query = {
        'postgresql': 'SELECT pg_backend_pid()',
        'mysql': 'SELECT CONNECTION_ID()',
    }
    return int(writer.conn.execute(sa.text(query[kind])).scalar_one())


def test_one_connection_is_used_again_and_again(writer):
    assert writer.write(session) == writer.write(session)


def test_a_connection_that_was_lost_is_replaced(store, writer):
    before = writer.write(session)
    end = {
        'postgresql': f'SELECT pg_terminate_backend({before}, 5000)',
        'mysql': f'KILL {before}',
    }
    with store.engine.connect() as conn:
        conn.exec_driver_sql(end[store.dialect])
    assert writer.write(session) != before


def test_an_error_of_the_work_is_raised_and_changes_nothing(store, writer):
    def work(transaction: Writer) -> None:
        transaction.conn.execute(sa.delete(schema.counters))
        raise errors.Conflict('x')

    with pytest.raises(errors.Conflict):
        writer.write(work)
    with store.reading() as conn:
        assert conn.execute(sa.select(schema.counters)).all()
    assert writer.write(session)


def test_url_may_name_mariadb(shared_url):
    url = sa.make_url(shared_url('mariadb')).set(drivername='mariadb+pymysql')
    store = Store.connect(url.render_as_string(hide_password=False))
    assert store.dialect == 'mysql'
    assert store.write(session)
    store.dispose()
