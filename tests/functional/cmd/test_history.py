"""What happened to a host, and to an instance?"""

import json

import pytest
import sqlalchemy as sa

from scheduler_service.store import schema

FLAVOR = {'vcpus': 1, 'memory_mb': 2048, 'root_gb': 1}


@pytest.fixture
def listed(run):
    def command(*words, status=0):
        ended, out, err = run('history', *words, '-f', 'json')
        assert ended == status, err
        return json.loads(out), err

    return command


def test_an_instance_is_claimed_and_released(run, select, listed):
    select(FLAVOR, request_id='req-one')
    (claim,) = json.loads(run('claim', 'list', '-f', 'json')[1])
    uuid, host = claim['uuid'], claim['host']
    assert run('release', '--local', uuid)[0] == 0
    # The recording begins with the first daemon.
    rows, err = listed('instance', uuid, '--since', '1h', status=1)
    assert err.startswith('The history goes back to ')
    assert [
        (row['event'], row['host'], row['request_id']) for row in rows[:1]
    ] == [('claimed', host, 'req-one')]
    assert 'release' in [row['event'] for row in rows]
    rows, _ = listed('host', host, '--since', '1h', status=1)
    assert ('claimed', uuid) in [
        (row['event'], row['instance']) for row in rows
    ]
    assert listed('host', 'nowhere', status=1)[0] == []


def test_a_refusal_is_there(run, select, listed):
    uuid = '11111111-0000-4000-8000-000000000001'
    select({**FLAVOR, 'memory_mb': 99_999}, request_id='req-two',
           instance_uuids=[uuid])  # fmt: skip
    rows, _ = listed('instance', uuid, status=1)
    assert [
        (row['event'], row['request_id'], row['detail']) for row in rows
    ] == [('refused', 'req-two', 'NoValidHost')]


def test_a_gap_is_a_row(select, listed, ready_sqlite):
    select(FLAVOR, request_id='req-one')
    with sa.create_engine(ready_sqlite).begin() as conn:
        conn.execute(sa.update(schema.history).values(data=b'x'))
    rows, _ = listed('host', 'compute-1', status=1)
    assert [row['event'] for row in rows] == ['gap']
    assert 'is damaged' in rows[0]['detail']
    with sa.create_engine(ready_sqlite).begin() as conn:
        conn.execute(sa.delete(schema.history))
    rows, err = listed('host', 'compute-1', status=1)
    assert (rows, err) == ([], 'Nothing is recorded\n')
