"""``scheduler-manage db purge``."""

from __future__ import annotations

import time

import msgspec
import pytest
import sqlalchemy as sa

from scheduler_service.cmd import manage
from scheduler_service.store import clock, schema
from scheduler_service.store.connection import Store
from scheduler_service.store.records import decision_list, decisions, rates
from scheduler_service.store.records.decision_list import DecisionFilter
from scheduler_service.store.records.decisions import Decision
from tests.support.databases import DATABASES

pytestmark = pytest.mark.db
DAY = 86_400.0


@pytest.fixture
def purge(store, tmp_path, capsys):
    """Give a function that runs the command; it returns what it printed."""
    config = tmp_path / 'a.conf'
    url = store.engine.url.render_as_string(hide_password=False)
    config.write_text(f'[database]\nconnection = {url}\n')

    def run(*words: str, status: int = 0) -> str:
        command = ['--config-file', str(config), 'db', 'purge', '--decisions']
        try:
            found = manage.main([*command, *words])
        except SystemExit as ended:
            # The parser refuses the command line.
            found = ended.code
        assert found == status
        printed = capsys.readouterr()
        return printed.out + printed.err

    return run


@pytest.fixture(params=DATABASES)
def store(make_store, request) -> Store:
    """Ten decisions, of today and of each of the nine days before."""
    made = make_store(request.param)
    some = [
        Decision(f'req-{days}', 'select_destinations', 'chosen', {})
        for days in range(9, -1, -1)
    ]
    made.write(lambda writer: decisions.record(writer, some))
    table = schema.decisions
    with made.engine.begin() as conn:
        now = clock.read(conn)
        for days in range(10):
            older = sa.update(table).where(table.c.request_id == f'req-{days}')
            conn.execute(older.values(created_at=now - days * DAY - 60))
    return made


def left(store):
    with store.reading() as conn:
        return decision_list.count(conn, DecisionFilter())


def test_what_is_older_is_deleted_batch_by_batch(store, purge):
    assert purge('--before', '20d') == '0 decisions were deleted.\n'
    told = purge('--before', '2.5d', '--batch', '3')
    assert told == '7 decisions were deleted.\n'
    assert left(store) == 3
    assert purge('--before', '30m') == '2 decisions were deleted.\n'
    assert purge('--before', '2999-01-01T00:00') == (
        '1 decisions were deleted.\n'
    )


def test_their_rates_go_with_decisions(store, purge):
    def numbers():
        with store.reading() as conn:
            return [rate.counts.decisions for rate in rates.between(conn, 0)]

    now = time.time()
    minutes = [int((now - days * DAY) // 60) for days in (3, 1)]
    for minute, run in zip(minutes, (2, 1), strict=True):
        counts = msgspec.json.encode(rates.Counts({'chosen': run})).decode()
        row = {'minute': minute, 'run': run, 'daemon': 'a', 'document': counts}
        with store.engine.begin() as conn:
            conn.execute(sa.insert(schema.decision_rates), row)
    assert numbers() == [2, 1]
    purge('--before', '2d')
    assert numbers() == [1]


@pytest.mark.parametrize(
    ('words', 'told'),
    [
        (('--before', 'yesterday'), "'yesterday' is neither"),
        (('--before', '30'), "'30' is neither"),
        (('--before', '0'), "'0' is neither"),
        (('--before', '9' * 400 + 'd'), 'is neither'),
        (('--before', '1d', '--batch', '0'), 'not a number from 1'),
    ],
)
@pytest.mark.parametrize('store', ['sqlite'], indirect=True)
def test_a_time_that_is_none_is_refused(store, purge, words, told):
    assert told in purge(*words, status=2)
    assert left(store) == 10
