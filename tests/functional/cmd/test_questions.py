"""The questions of an operator: what is full, what fits, who has it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from scheduler_service.store.claims import pod_claims
from scheduler_service.store.claims.pod_claims import PodClaim
from scheduler_service.store.connection import Store
from tests.support.commands import printed_json
from tests.support.waiting import LIMIT_S

QUARTER = {'vcpus': 1, 'memory_mb': 2048, 'root_gb': 1}
TOO_LARGE = {'vcpus': 1, 'memory_mb': 99_999}


@pytest.fixture
def listed(run):
    """Give a function that returns the rows of a list."""
    return lambda *words: printed_json(run(*words, '-f', 'json'))


def test_capacity_says_which_resource_ends_first(listed, select, run):
    select({'vcpus': 1, 'memory_mb': 4096, 'root_gb': 1}, 4)
    run('host', 'disable', 'compute-4')
    rows = {(row['zone'], row['resource']): row for row in listed('capacity')}
    assert {zone for zone, _ in rows} == {'north', 'nova'}
    memory = rows['nova', 'MEMORY_MB']
    assert (memory['capacity'], memory['used']) == (8195 + 8196, 8192)
    # What is left on the host that is disabled is out.
    assert (memory['out'], memory['free']) == (4100, 4099)
    assert memory['full'] == 75
    first = [key for key, row in rows.items() if row['ends_first']]
    assert sorted(first) == [('north', 'MEMORY_MB'), ('nova', 'MEMORY_MB')]
    assert {row['zone'] for row in listed('capacity', '--zone', 'north')} == {
        'north'
    }


def test_capacity_tells_every_zone_however_many_there_are(
    listed, run, tmp_path
):
    zones = [f'zone-{n:02}' for n in range(70)]
    path = tmp_path / 'many.json'
    path.write_text(
        json.dumps({
            'hosts': [{'host': zone, 'vcpus': n}
                      for n, zone in enumerate(zones, 1)],
            'aggregates': [
                {'id': n, 'name': zone, 'hosts': [zone],
                 'metadata': {'availability_zone': zone}}
                for n, zone in enumerate(zones, 2)
            ],
        })
    )  # fmt: skip
    assert run('inventory', 'import', str(path))[0] == 0
    found = {row['zone'] for row in listed('capacity')}
    assert found == {'north', 'nova', *zones}
    (row,) = listed('capacity', '--zone', 'zone-69')
    assert (row['resource'], row['capacity']) == ('VCPU', 70 * 16)


def test_hosts_of_several_zones_are_found_by_each_of_them(
    listed, select, run, tmp_path
):
    path = tmp_path / 'several.json'
    hosts = {
        'two': 'east,west',
        'both': 'east',
        'west-only': ' west ',
    }
    path.write_text(
        json.dumps({
            'hosts': [{'host': host, 'vcpus': 1, 'memory_mb': 4096}
                      for host in hosts],
            'aggregates': [
                {'id': 7, 'hosts': ['both'],
                 'metadata': {'availability_zone': 'west'}},
            ] + [
                {'id': n, 'hosts': [host],
                 'metadata': {'availability_zone': zone}}
                for n, (host, zone) in enumerate(hosts.items(), 8)
            ],
        })
    )  # fmt: skip
    assert run('inventory', 'import', str(path))[0] == 0

    def zones(*words):
        return {row['zone'] for row in listed(*words)}

    assert zones('capacity') == {'north', 'nova', 'west', 'east, west'}
    for zone, names, places in (
        ('east', ['both', 'two'], {'east, west'}),
        ('west', ['both', 'two', 'west-only'], {'west', 'east, west'}),
    ):
        rows = listed('host', 'list', '--zone', zone)
        assert [row['host'] for row in rows] == names
        assert zones('capacity', '--zone', zone) == places
        fits = listed('capacity', '--zone', zone, '--flavor', 'memory_mb=4096')
        assert {row['zone'] for row in fits} == places
        assert sum(row['instances'] for row in fits) == len(names)
    assert select({'memory_mb': 4096}, 3, availability_zone='west')[0] == 0
    _, _, err = run('capacity', '--zone', 'easst')
    assert 'there are east, north, nova, west; is east meant?' in err


def test_capacity_says_how_many_of_a_flavor_fit(listed, select, tmp_path):
    flavor = 'vcpus=1,memory_mb=2048,root_gb=1'
    rows = listed('capacity', '--flavor', flavor)
    assert [(row['zone'], row['instances']) for row in rows] == [
        ('north', 8),
        ('nova', 8),
    ]
    assert {row['ends_first'] for row in rows} == {'MEMORY_MB'}
    select(QUARTER, 5, availability_zone='north')
    path = tmp_path / 'flavor.json'
    path.write_text(json.dumps(QUARTER))
    words = ['capacity', '--flavor', str(path), '--zone', 'north']
    assert [row['instances'] for row in listed(*words)] == [3]
    # As many as were said, and no more.
    assert select(QUARTER, 4, availability_zone='north')[0] == 1
    assert select(QUARTER, 3, availability_zone='north')[0] == 0
    assert listed(*words[:3]) == [
        {'zone': 'north', 'hosts': 0, 'instances': 0,
         'ends_first': 'MEMORY_MB'},
        {'zone': 'nova', 'hosts': 2, 'instances': 8,
         'ends_first': 'MEMORY_MB'},
    ]  # fmt: skip
    assert [row['zone'] for row in listed(*words)] == ['north']


def test_capacity_says_what_an_aggregate_has_for_all_its_hosts(
    listed, run, select, tmp_path
):
    path = tmp_path / 'cad.json'
    path.write_text(
        json.dumps({'aggregates': [
            {'id': 9, 'name': 'cad', 'hosts': ['compute-1', 'compute-2'],
             'resources': {'CUSTOM_CAD': {'total': 5}}},
        ]})
    )  # fmt: skip
    assert run('inventory', 'import', str(path))[0] == 0
    licensed = {'vcpus': 1, 'extra_specs': {'resources:CUSTOM_CAD': '2'}}
    assert select(licensed)[0] == 0
    rows = [row for row in listed('capacity') if 'CAD' in row['resource']]
    assert [
        (row['zone'], row['capacity'], row['used'], row['free'])
        for row in rows
    ] == [('aggregate cad', 5, 2, 3)]
    flavor = 'vcpus=1,resources:CUSTOM_CAD=2'
    assert [
        (row['zone'], row['instances'], row['ends_first'])
        for row in listed('capacity', '--flavor', flavor)
    ] == [('north', 1, 'CUSTOM_CAD'), ('nova', 0, 'CUSTOM_CAD')]
    counts = {row['what']: row['count'] for row in listed('inventory', 'show')}
    assert counts['CUSTOM_CAD of aggregate cad in all'] == 5
    (found,) = [r for r in listed('aggregate', 'list') if r['name'] == 'cad']
    assert found['resources']['CUSTOM_CAD']['used'] == 2
    assert select(licensed)[0] == 0
    status, _, err = select(licensed)
    assert status == 1
    assert '4 of 5 CUSTOM_CAD of aggregate cad are used' in err


def test_capacity_of_hosts_is_asked_for_a_request(listed, tmp_path):
    path = tmp_path / 'request.json'
    path.write_text(
        json.dumps({'flavor': QUARTER, 'force_hosts': ['compute-2']})
    )
    rows = listed('capacity', '--flavor', str(path), '--by', 'host')
    assert rows == [
        {'host': 'compute-2', 'hosts': 1, 'instances': 4,
         'ends_first': 'MEMORY_MB'}
    ]  # fmt: skip


def test_capacity_of_several_flavors_is_one_list(listed, run, tmp_path):
    """From the command line, and from a list as a client prints it."""
    path = tmp_path / 'flavors.json'
    path.write_text(
        json.dumps(
            [
                {'ID': '1', 'Name': 'small', 'RAM': 2048, 'Disk': 1,
                 'Ephemeral': 0, 'VCPUs': 1, 'Is Public': True, 'Swap': '',
                 'RXTX Factor': 1.0, 'Properties': {}},
                {'ID': '2', 'Name': 'absent', 'RAM': 2048, 'Disk': 1,
                 'Ephemeral': 0, 'VCPUs': 1, 'Is Public': True, 'Swap': 0,
                 'RXTX Factor': 1.0,
                 'Properties': {'resources:CUSTOM_ABSENT': '1'}},
            ]
        )
    )  # fmt: skip
    words = [
        'capacity', '--flavor', 'memory_mb=4096', '--flavors', str(path),
        '--zone', 'north',
    ]  # fmt: skip
    rows = listed(*words)
    assert [
        (row['flavor'], row['zone'], row['instances'], row['ends_first'])
        for row in rows
    ] == [
        ('memory_mb=4096', 'north', 4, 'MEMORY_MB'),
        ('small', 'north', 8, 'MEMORY_MB'),
        ('absent', 'north', 0, 'CUSTOM_ABSENT'),
    ]
    _, _, err = run(*words)
    assert err.startswith('No instance of absent fits: ')
    path.write_text('{"vcpus": 1}')
    status, _, err = run('capacity', '--flavors', str(path))
    assert (status, err) == (
        1, f'InvalidRequest: {path}: expected a list of flavors\n',
    )  # fmt: skip


def test_capacity_by_aggregate(listed):
    rows = listed(
        'capacity', '--flavor', 'memory_mb=4096', '--by', 'aggregate'
    )
    assert [tuple(row.values()) for row in rows] == [
        ('aggregate-1', 2, 4, 'MEMORY_MB'), ('', 2, 4, 'MEMORY_MB'),
    ]  # fmt: skip


@pytest.mark.parametrize('flavor', ['/no/such/file', 'vcpus'])
def test_a_file_without_a_flavor_is_refused(run, flavor):
    status, _, err = run('capacity', '--flavor', flavor)
    assert status == 1
    assert err.startswith('InvalidRequest: ')


def test_claims_are_found_by_project_and_age(listed, select, ready_sqlite):
    for project in ('p', 'q'):
        select(QUARTER, project_id=project)
    store = Store.connect(ready_sqlite)
    table = schema.instances
    with store.engine.begin() as conn:
        conn.execute(
            sa.update(table)
            .where(table.c.project_id == 'p')
            .values(created_at=time.time() - 7200)
        )
    store.dispose()

    def projects(*words):
        return [row['project_id'] for row in listed('claim', 'list', *words)]

    assert projects() == ['q', 'p']
    assert projects('--project', 'q') == ['q']
    assert projects('--older-than', '1h') == ['p']
    assert projects('--older-than', '3h') == []
    assert projects(
        '--sort-column', 'age_s', '--sort-descending', '--limit', '1'
    ) == ['p']
    (old,) = listed('claim', 'list', '--project', 'p')
    assert 7190 < old['age_s'] < 7500


def test_decisions_are_found_by_what_is_in_them(listed, select, run):
    select(QUARTER, project_id='p')
    select(TOO_LARGE, project_id='p')
    select({'vcpus': 999}, project_id='q')
    run('zone', 'schedule', '--local', '--name', 'z.', '--attribute', 'a=b')

    def found(*words):
        rows = listed('decision', 'list', *words)
        return [(row['project_id'], row['filter']) for row in rows]

    everything = found()
    assert len(everything) == 4
    refused = [('q', 'CoreFilter'), ('p', 'RamFilter')]
    assert found('--outcome', 'NoValidHost') == refused
    assert found('--outcome', 'refused')[1:] == refused
    assert found('--filter', 'RamFilter') == [('p', 'RamFilter')]
    assert found('--project', 'p', '--outcome', 'chosen') == [('p', '')]
    assert found('--host', 'compute-4') == [('p', '')]
    assert found('--host', 'compute-1') == []
    assert found('--since', '1h') == everything
    assert len(found('--limit', '2')) == 2
    time.sleep(1.1)
    assert found('--since', '1s') == []


def test_where_the_instances_of_a_host_could_go(listed, select, run):
    select(QUARTER, 8, availability_zone='north', project_id='p')
    claims = listed('claim', 'list', '--sort-column', 'uuid')
    mine = [claim['uuid'] for claim in claims if claim['host'] == 'compute-1']
    assert len(mine) == 4
    # Their zone is full: they were asked to be in it.
    status, out, _ = run('host', 'drain', 'compute-1', '--plan', '-f', 'json')
    assert status == 1
    assert {row['to'] for row in json.loads(out)} == {None}
    assert 'RamFilter' in json.loads(out)[0]['reason']
    others = [
        claim['uuid'] for claim in claims if claim['host'] == 'compute-2'
    ]
    run('claim', 'release', *others[:3])
    status, out, _ = run('host', 'drain', 'compute-1', '--plan', '-f', 'json')
    rows = json.loads(out)
    assert status == 1
    assert sorted(row['instance'] for row in rows) == sorted(mine)
    assert [row['to'] for row in rows] == ['compute-2'] * 3 + [None]
    assert rows[0]['memory_mb'] == 2048
    # Nothing was moved.
    left = listed('claim', 'list', '--sort-column', 'uuid')
    assert [one['host'] for one in left].count('compute-1') == 4
    run('claim', 'release', others[3])
    assert run('host', 'drain', 'compute-1', '--plan')[0] == 0


def test_pods_of_a_host_are_shown_and_stay(listed, run, ready_sqlite):
    store = Store.connect(ready_sqlite)
    pods = [
        PodClaim(f'u{n}', f'shop/p{n}', 'compute-1', 'compute-1', {'VCPU': 1})
        for n in range(2)
    ]
    store.write(lambda writer: pod_claims.confirm(writer, pods))
    store.dispose()
    status, out, _ = run('host', 'drain', 'compute-1', '--plan', '-f', 'json')
    assert status == 0
    assert [
        (row['instance'], row['to'], row['reason']) for row in json.loads(out)
    ] == [(pod.name, None, 'a pod: its cluster evicts it') for pod in pods]
    assert 'shop/p0' in run('host', 'show', 'compute-1')[1]
    kinds = {row['kind'] for row in listed('claim', 'list')}
    assert kinds == {'pod'}
    assert printed_json(run('claim', 'show', 'u0', '-f', 'json'))['kind'] == (
        'pod'
    )


def test_members_of_a_server_group_keep_apart_in_the_plan(listed, select, run):
    group = '33333333-0000-4000-8000-000000000001'
    run('server-group', 'create', 'apart', '--uuid', group)
    select(QUARTER, 3, instance_group=group)
    used = {one['host'] for one in listed('claim', 'list')}
    (free,) = {f'compute-{n}' for n in range(1, 5)} - used
    (row,) = listed('host', 'drain', sorted(used)[0], '--plan')
    assert row['to'] == free


def test_a_host_that_is_not_there_has_no_plan(run):
    status, _, err = run('host', 'drain', 'nowhere', '--plan')
    assert (status, err) == (1, 'HostNotFound: There is no host nowhere\n')


def test_a_drain_of_an_empty_host_says_that_nothing_is_to_move(run):
    assert run('host', 'drain', 'compute-1', '--plan', '-f', 'value') == (
        0,
        '',
        'No instance is on host compute-1: there is nothing to move\n',
    )


def test_a_flavor_with_an_unknown_key_is_refused(run):
    status, out, err = run('capacity', '--flavor', 'vcpus=2,ram=4096')
    assert (status, out) == (2, '')
    assert 'ram: neither a size (vcpus, memory_mb, ' in err
    assert run('capacity', '--flavor', 'vcpus=1,trait:HW=required')[0] == 0


def test_a_flavor_that_fits_nowhere_has_a_reason(run):
    status, _, err = run('capacity', '--flavor', 'vcpus=999')
    assert status == 0
    assert err.startswith('No instance fits: ')
    assert 'CoreFilter' in err


def test_lists_say_what_they_leave_out(run, select):
    for _ in range(4):
        select(QUARTER, project_id='p')
    for words, text in (
        (('host', 'list', '--limit', '3'), '3 of 4 rows'),
        (('decision', 'list', '--limit', '3'), '3 of 4 rows'),
        (
            ('decision', 'list', '--limit', '2', '--sort-column', 'hosts'),
            '2 of 4 ',
        ),
        (
            ('decision', 'list', '--limit', '1', '--project', 'p'),
            '1 of 4 rows',
        ),
        (('claim', 'list', '--limit', '1'), '1 of more rows'),
    ):
        status, _, err = run(*words)
        assert status == 0
        assert err.startswith(text), words
        assert err.endswith('; --limit 0 prints all\n')
    for words in (('host', 'list'), ('decision', 'list', '--limit', '4')):
        assert run(*words)[2] == ''


def test_decisions_of_a_time_and_on_an_instance(listed, select, run):
    select(QUARTER, project_id='p')
    uuid = '44444444-0000-4000-8000-000000000001'
    select({'vcpus': 999}, project_id='q', instance_uuids=[uuid])
    (last, first) = listed('decision', 'list')
    (refused,) = listed('decision', 'list', '--instance', uuid.upper())
    assert (refused['outcome'], refused['instances']) == (
        'NoValidHost',
        [uuid],
    )
    chosen = first['instances'][0]
    assert listed('decision', 'list', '--instance', chosen) == [first]
    (shown,) = listed('decision', 'show', chosen)
    assert shown['request_id'] == first['request_id']
    assert listed('decision', 'show', uuid)[0]['outcome'] == 'NoValidHost'
    assert listed('decision', 'list', '--until', '1h') == []
    assert listed('decision', 'list', '--until', '2030-01-01') == [last, first]
    since = last['created_at'].replace(' ', 'T')
    assert listed('decision', 'list', '--since', since)[0] == last
    status, _, err = run('decision', 'show', 'req-of-a-dry-run')
    assert status == 1
    assert 'dry runs are not stored' in err


def test_decisions_are_counted_by_columns(listed, select, run):
    for project, flavor in (
        ('p', TOO_LARGE),
        ('p', TOO_LARGE),
        ('q', QUARTER),
    ):
        select(flavor, project_id=project)
    assert listed('decision', 'list', '--by', 'filter,project_id') == [
        {'filter': 'RamFilter', 'project_id': 'p', 'decisions': 2},
        {'filter': '', 'project_id': 'q', 'decisions': 1},
    ]
    assert listed('decision', 'list', '--by', 'host', '--outcome', 'chosen')
    status, _, err = run('decision', 'list', '--by', 'day')
    assert status == 2
    columns = 'kind, outcome, filter, project_id, user_id, host'
    assert f'day: not one of {columns}' in err


def test_new_decisions_are_followed(select, tmp_path):
    select(QUARTER, project_id='p')
    follow = subprocess.Popen(
        [sys.executable, '-m', 'scheduler_service.cmd.manage',
         '--config-file', str(tmp_path / 'a.conf'), 'decision', 'list',
         '--follow', '-c', 'project_id', '-c', 'outcome'],
        stdout=subprocess.PIPE, text=True,
        # Tests that run in the background ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    with follow:
        try:
            assert follow.stdout.readline() == 'p  chosen\n'
            select(TOO_LARGE, project_id='q')
            assert follow.stdout.readline() == 'q  NoValidHost\n'
            follow.send_signal(signal.SIGINT)
            assert follow.wait(LIMIT_S) == 130
        finally:
            follow.kill()


def test_a_list_of_no_zones_says_which_zones_it_lists(run):
    status, _, err = run('zone', 'list')
    assert status == 0
    assert err.startswith('No DNS zone has a pool; ')
    assert 'availability zones' in err
