"""What happened to daemons, as commands print it."""

from __future__ import annotations

import json
import signal

import pytest
import sqlalchemy as sa

from scheduler_service import moments
from scheduler_service.cmd import manage
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from scheduler_service.store.records import daemons, recordings
from tests.support.databases import session
from tests.support.waiting import wait_until

INSTANCE = '11111111-0000-4000-8000-000000000001'


@pytest.fixture
def listed(ready_sqlite, capsys, tmp_path):
    """Give a function that lists what happened: rows and standard error.

    :param about: the word, and what follows it
    """
    path = tmp_path / 'manage.conf'
    path.write_text(f'[database]\nconnection = {ready_sqlite}\n')

    def command(*about, status=0):
        words = about or ['daemons']
        given = ['--config-file', str(path), 'history', *words]
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
    assert listed()[0][0]['begun_at'] == silent['begun_at']
    store.dispose()


def begins_of(database, count):
    """Return when runs began, once there are so many."""

    def begins():
        with session(database) as conn:
            found = [each.began_at for each in recordings.stretches(conn)]
        return len(found) == count and sorted(found)

    return wait_until(begins)


def test_what_follows_a_kill_is_a_gap_until_the_next_checkpoint(
    launch, ready_sqlite, listed
):
    """An orderly stop is none."""

    def start():
        server = '[scheduler]\nserver = one\n'
        daemon = launch(ready_sqlite, 'inproc://', server)
        daemon.wait_for('Ready:')
        return daemon

    assert start().end() == 0
    killed = start()
    begins_of(ready_sqlite, 2)
    words = 'host', 'compute-1', '--since', '1h'
    rows, err = listed(*words)
    assert (rows, err[:24]) == ([], 'The history goes back to')
    assert [row['fault'] for row in listed('check')[0]] == ['', '']
    killed.popen.kill()
    killed.popen.wait()
    assert start().end() == 0
    _, *times = begins_of(ready_sqlite, 3)
    began_at, ended_at = map(moments.text, times)
    for about in (words, ('instance', INSTANCE)):
        (gap,), _ = listed(*about, status=1)
        assert [gap[name] for name in ('event', 'daemon', 'at')] == [
            'gap', 'one', began_at,
        ]  # fmt: skip
        assert gap['detail'] == (
            f'The daemon did not stop in order: not recorded until {ended_at}'
        )
    *whole, gap = listed('check', status=1)[0]
    assert [row['fault'] for row in whole] == ['', '', '']
    assert (gap['daemon'], gap['began_at'], gap['ended_at']) == (
        'one', began_at, ended_at,
    )  # fmt: skip
    # It is before the time that is asked for.
    with session(ready_sqlite) as conn:
        columns = schema.history.c
        earlier = columns.created_at - 7200
        conn.execute(sa.update(schema.history).values(created_at=earlier))
    assert listed(*words) == ([], '')


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


def test_a_daemon_that_was_killed_before_it_registered_leaves_a_gap(
    launch, ready_sqlite, listed
):
    """As soon as it would be known to be silent."""
    killed = launch(ready_sqlite, 'inproc://', '[scheduler]\nserver = one\n')
    killed.wait_for('Ready:')
    begins_of(ready_sqlite, 1)
    killed.popen.kill()
    killed.popen.wait()
    with session(ready_sqlite) as conn:
        conn.execute(sa.delete(schema.daemons))
    assert [row['fault'] for row in listed('check')[0]] == ['']
    with session(ready_sqlite) as conn:
        earlier = schema.history.c.created_at - 60
        conn.execute(sa.update(schema.history).values(created_at=earlier))
    _, gap = listed('check', status=1)[0]
    assert gap['fault'] == 'The daemon did not stop in order'
