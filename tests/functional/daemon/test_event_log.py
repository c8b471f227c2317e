"""What happened to daemons, as commands print it."""

from __future__ import annotations

import json
import signal

import pytest
import sqlalchemy as sa

from scheduler_service.cmd import manage
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from scheduler_service.store.records import daemons
from tests.support.waiting import wait_until


@pytest.fixture
def listed(ready_sqlite, capsys, tmp_path):
    """Give a function that lists what happened: rows and standard error."""
    path = tmp_path / 'manage.conf'
    path.write_text(f'[database]\nconnection = {ready_sqlite}\n')

    def command(*words, status=1):
        given = ['--config-file', str(path), 'history', 'daemons', *words]
        ended = manage.main([*given, '-f', 'json'])
        told = capsys.readouterr()
        assert ended == status, told.err
        return json.loads(told.out), told.err

    return command


def test_starts_reloads_and_ends_are_listed(
    launch, ready_sqlite, listed, tmp_path
):
    name = '[scheduler]\nserver = one\n'
    daemon = launch(ready_sqlite, 'inproc://', name)
    daemon.wait_for('Ready:')
    path = tmp_path / '0.conf'
    before = path.read_text()
    for more, line in (
        ('[filter_scheduler]\nhost_subset_size = 3\n', 'reloaded; changed'),
        ('[filter_scheduler]\nhost_subset_size = x\n', 'cannot be used'),
    ):
        path.write_text(before + more)
        daemon.popen.send_signal(signal.SIGHUP)
        daemon.wait_for(line)
    # Each is stored at once.
    rows = wait_until(lambda: (found := listed()[0])[3:] and found)
    details = {row['event']: row['detail'] for row in rows}
    # As long as the files cannot be used.
    assert 'the last reload was refused' in details.pop('degraded')
    assert [*details] == ['started', 'reloaded', 'not reloaded']
    assert {row['who'] for row in rows} == {'one'}
    started, reloaded, refused = details.values()
    assert started.startswith('release ')
    assert reloaded == '[filter_scheduler] host_subset_size: 1 -> 3'
    assert 'host_subset_size' in refused
    assert daemon.end() == 0
    rows, err = listed()
    assert rows[-1]['event'] == 'stopped'
    assert rows[-1]['ended_at'] is None
    assert err.startswith('The history goes back to ')


def test_a_daemon_that_was_killed_is_silent_since_its_last_sign(
    launch, ready_sqlite, listed
):
    daemon = launch(ready_sqlite, 'inproc://', '[scheduler]\nserver = one\n')
    daemon.wait_for('Ready:')
    wait_until(lambda: listed()[0])
    daemon.popen.kill()
    daemon.popen.wait()
    store = Store.connect(ready_sqlite)
    table = schema.daemons
    with store.engine.begin() as conn:
        seen_at = conn.execute(sa.select(table.c.seen_at)).scalar() - 60
        conn.execute(sa.update(table).values(seen_at=seen_at))
    silent = listed()[0][0]
    assert (silent['event'], silent['who']) == ('silent', 'one')
    # It is recorded once where others forget it.
    for _ in range(2):
        store.write(lambda writer: daemons.prune(writer, 30))
    assert [row['event'] for row in listed()[0]] == ['silent', 'started']
    again = listed()[0][0]
    assert again['begun_at'][:21] == silent['begun_at'][:21]
    store.dispose()


def test_what_lasts_is_listed(ready_sqlite, listed):
    store = Store.connect(ready_sqlite)
    entry = daemons.Registration('id', 'one', '1', 'f', {}, [],
                                 [('broker unreachable', 12.0)])  # fmt: skip
    store.write(lambda writer: daemons.register(writer, entry))
    (row,) = listed()[0]
    assert (row['event'], row['who'], row['detail'], row['ended_at']) == (
        'degraded', 'one', 'broker unreachable', None,
    )  # fmt: skip
    store.dispose()
