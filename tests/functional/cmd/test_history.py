"""What happened to a host, and to an instance?"""

import json
import os
import pwd

import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from tests.support.databases import session
from tests.support.engines import store_all
from tests.support.waiting import LIMIT_S

FLAVOR = {'vcpus': 1, 'memory_mb': 2048, 'root_gb': 1}


@pytest.fixture
def select(decide):
    return decide


@pytest.fixture
def listed(run):
    def command(*words, status=0):
        ended, out, err = run('history', *words, '-f', 'json')
        assert ended == status, err
        return json.loads(out), err

    return command


def test_an_instance_is_claimed_and_released(run, engine, select, listed):
    select(FLAVOR, request_id='req-one')
    (claim,) = json.loads(run('claim', 'list', '-f', 'json')[1])
    uuid, host = claim['uuid'], claim['host']
    engine.release([uuid]).result(LIMIT_S)
    store_all(engine)
    # The recording begins with the first daemon.
    rows, err = listed('instance', uuid, '--since', '1h')
    assert err.startswith('The history goes back to ')
    assert [
        (row['event'], row['host'], row['request_id']) for row in rows[:1]
    ] == [('claimed', host, 'req-one')]
    assert 'release' in [row['event'] for row in rows]
    rows, _ = listed('host', host, '--since', '1h')
    assert ('claimed', uuid) in [
        (row['event'], row['instance']) for row in rows
    ]
    assert listed('host', 'nowhere')[0] == []


def test_a_refusal_is_there(run, select, listed):
    uuid = '11111111-0000-4000-8000-000000000001'
    select({**FLAVOR, 'memory_mb': 99_999}, request_id='req-two',
           instance_uuids=[uuid])  # fmt: skip
    rows, _ = listed('instance', uuid)
    assert [
        (row['event'], row['request_id'], row['detail']) for row in rows
    ] == [('refused', 'req-two', 'NoValidHost')]


def test_a_gap_is_a_row(select, listed, ready_sqlite):
    select(FLAVOR, request_id='req-one')
    with session(ready_sqlite) as conn:
        conn.execute(sa.update(schema.history).values(data=b'x'))
    rows, _ = listed('host', 'compute-1', status=1)
    assert [row['event'] for row in rows] == ['gap']
    assert 'is damaged' in rows[0]['detail']
    with session(ready_sqlite) as conn:
        conn.execute(sa.delete(schema.history))
    rows, err = listed('host', 'compute-1')
    assert (rows, err) == ([], 'Nothing is recorded\n')


def test_commands_that_change_something_are_there(run, listed, ready_sqlite):
    assert listed('daemons') == ([], 'Nothing is recorded\n')
    uuid = '11111111-0000-4000-8000-000000000001'
    for words in (
        ('host', 'disable', 'compute-1', '--reason', 'a new disk'),
        ('aggregate', 'create', 'rack'),
        ('aggregate', 'add-host', 'rack', 'compute-1', 'compute-2'),
        # Only read.
        ('host', 'show', 'compute-1'),
        ('audit',),
        # Fails: there is no such host.
        ('host', 'enable', 'nowhere'),
        # Of no instance.
        ('--timeout', '30', 'claim', 'release', uuid.replace('-', '')),
    ):
        run(*words)
    rows, _ = listed('host', 'compute-1')
    user = pwd.getpwuid(os.getuid()).pw_name
    assert [(row['event'], row['user'], row['detail']) for row in rows] == [
        ('command', user, 'scheduler-manage host disable compute-1 --reason '
         "'a new disk'"),
        ('command', user, 'scheduler-manage aggregate add-host rack compute-1 '
         'compute-2'),
    ]  # fmt: skip
    assert [len(listed('host', name)[0]) for name in (
        'compute-2', 'compute-3', 'nowhere',
    )] == [1, 0, 0]  # fmt: skip
    (row,), _ = listed('instance', uuid)
    assert row['detail'].endswith(f'claim release {uuid.replace("-", "")}')
    rows, err = listed('daemons')
    assert err.startswith('The history goes back to ')
    assert [row['event'] for row in rows] == ['command'] * 4
    with session(ready_sqlite) as conn:
        columns = schema.events.c
        first = sa.update(schema.events).where(columns.id == 1)
        conn.execute(first.values(begun_at=columns.begun_at - 90_000))
    assert listed('daemons')[1] == ''


def test_a_trial_is_no_command_that_changes(
    run, listed, tmp_path, ready_sqlite
):
    path = tmp_path / 'request.json'
    path.write_text(json.dumps({'flavor': FLAVOR, 'request_id': 'req-one'}))
    words = 'select', '--local', '--request', str(path)
    assert run(*words)[0] == 0
    run(*words, '--dry-run')
    run(*words, '--host', 'compute-1')
    rows, _ = listed('daemons')
    assert [row['event'] for row in rows] == ['command']
    # What it saw is no recording, and its decision keeps its request.
    with session(ready_sqlite) as conn:
        assert not conn.execute(sa.select(schema.history)).all()
    assert json.loads(run('why', 'req-one', '-f', 'json')[1])['as_of'] == 'now'


def test_it_is_said_where_a_command_is_not_recorded(run, listed, ready_sqlite):
    with session(ready_sqlite) as conn:
        conn.execute(sa.text(
            'CREATE TRIGGER full BEFORE INSERT ON events '
            "BEGIN SELECT RAISE(ABORT, 'no room'); END"
        ))  # fmt: skip
    status, _, err = run('host', 'disable', 'compute-1')
    assert status == 0
    assert err.startswith('The history lacks this command: ')
