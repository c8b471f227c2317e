"""nova's own client gets what it expects of a scheduler."""

import json
import time
import uuid

import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from tests.support import nova_wire
from tests.support.paths import NOVA_WIRE
from tests.support.slow_filter import SLOW
from tests.support.stores import import_inventory
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.db]


def paths(*names):
    """Return the files of recorded cases."""
    for name in names:
        nova_wire.case(name)
    return [str(NOVA_WIRE / f'{name}.json') for name in names]


def test_each_recorded_case_comes_back_as_nova_reads_it(make_daemon, as_nova):
    running = make_daemon()
    simple, three, dicts, huge, full, *casts = as_nova(
        running.url, *paths(*nova_wire.REQUESTS, *nova_wire.FANOUTS)
    )
    assert casts == [{'reply': None}] * 5
    health = running.daemon.scheduler.health
    wait_until(
        lambda: sum(health.counters().get('compute_changes', {}).values()) == 5
    )
    (listed,) = simple['reply']
    assert [one['host'] for one in listed] == [
        'compute-1', 'compute-2', 'compute-3',
    ]  # fmt: skip
    assert listed[0]['node'] == listed[0]['dict']['nodename'] == 'node-1'
    assert listed[0]['limits']
    assert listed[0]['zone'] == 'nova'
    assert listed[0]['version'] == '1.36'
    (resources,) = listed[0]['allocation']['allocations'].values()
    assert resources == {
        'resources': {'VCPU': 2, 'MEMORY_MB': 2048, 'DISK_GB': 20}
    }
    chosen = {each[0]['host'] for each in three['reply']}
    assert len(three['reply']) == 3
    assert not any(
        chosen & {one['host'] for one in each[1:]} for each in three['reply']
    )
    (plain,) = dicts['reply']
    assert plain.keys() == {'host', 'nodename', 'limits'}
    assert huge == {
        'error': 'NoValidHost',
        'message': 'No valid host was found. '
        'There are not enough hosts available.',
        'kwargs': {
            'reason': 'There are not enough hosts available.',
            'code': 500,
        },
    }
    assert full['error'] == 'NoValidHost'
    assert 'same_subtree' in full['message']
    with running.store.reading() as conn:
        table = schema.instances.c
        query = sa.select(table.uuid).where(table.state == 'claimed')
        uuids = conn.execute(query).scalars()
        assert len({uuid.UUID(one) for one in uuids}) == 5


def test_nova_at_4_4_gets_plain_dicts(make_daemon, as_nova):
    running = make_daemon()
    (dicts,) = as_nova(running.url, *paths('dicts'), version='4.4')
    assert [one['host'] for one in dicts['reply']] == ['compute-1']


def test_the_limits_of_numa_cells_come_along(make_daemon, as_nova, tmp_path):
    running = make_daemon(
        filter_scheduler__enabled_filters=['NUMATopologyFilter']
    )
    cell = {'cpuset': [0, 1], 'memory': 4096}
    document = {
        'host': 'numa-1', 'vcpus': 16, 'memory_mb': 8192, 'local_gb': 500,
        'ram_allocation_ratio': 1.25, 'cell_uuid': 'cell-1',
        'numa_topology': {'cells': [cell, cell], 'cpu_allocation_ratio': 4.0},
    }  # fmt: skip
    import_inventory(running.store, {'hosts': [document]})
    cells = [
        nova_wire.thing('InstanceNUMACell', '1.6', cpuset=[at], memory=1024)
        for at in range(2)
    ]
    spec = nova_wire.spec(
        numa_topology=nova_wire.thing(
            'InstanceNUMATopology', '1.3', cells=cells
        ),
        network_metadata=nova_wire.thing(
            'NetworkMetadata', physnets=['p2', 'p1'], tunneled=True
        ),
    )
    without = nova_wire.spec()
    paths = []
    for name, spec_obj in (('numa', spec), ('without', without)):
        args = {
            'instance_uuids': [str(uuid.uuid4())],
            'spec_obj': spec_obj,
            'return_objects': True,
            'return_alternates': True,
        }
        message = {'method': 'select_destinations', 'args': args}
        path = tmp_path / f'{name}.json'
        path.write_text(
            json.dumps({'messages': [{'body': {'oslo.message': message}}]})
        )
        paths.append(str(path))
    numa, plain = as_nova(running.url, *paths)
    (found,) = numa['reply'][0]
    assert found['host'] == 'numa-1'
    assert found['numa'] == {
        'cpu': 4.0, 'ram': 1.25, 'physnets': ['p1', 'p2'], 'tunneled': True,
    }  # fmt: skip
    assert all(one['numa'] is None for one in plain['reply'][0])


def test_an_answer_after_more_than_the_timeout_arrives(
    make_daemon, as_nova, tmp_path
):
    running = make_daemon(**SLOW)
    message = {
        'method': 'select_destinations',
        'args': {
            'instance_uuids': [str(uuid.uuid4())],
            'spec_obj': nova_wire.spec(
                flavor=nova_wire.flavor(name='slow:20')
            ),
            'return_objects': True,
            'return_alternates': True,
        },
    }
    path = tmp_path / 'slow.json'
    path.write_text(
        json.dumps({'messages': [{'body': {'oslo.message': message}}]})
    )
    # It gives up a call after 10 seconds without a sign of life.
    start = time.monotonic()
    (found,) = as_nova(running.url, str(path), patience_s=10)
    assert time.monotonic() - start > 20
    assert [one['host'] for one in found['reply'][0]] == [
        'compute-1', 'compute-2', 'compute-3',
    ]  # fmt: skip
    counters = running.daemon.scheduler.health.counters()
    assert counters['call_heartbeats']['sent'] >= 2
