"""Commands on hosts, pools, aggregates and groups."""

import json
import os
import pwd
from datetime import UTC, datetime

import yaml

from scheduler_service.store.connection import Store
from scheduler_service.store.records import host_reports
from scheduler_service.store.records.host_reports import Refusals
from scheduler_service.store.writing import hosts
from tests.support.commands import printed_json
from tests.support.documents import SMALL


def test_hosts_change_when_commands_are_run(run):
    run('host', 'disable', 'compute-1', '--reason', 'broken')
    rows = printed_json(run('host', 'list', '-f', 'json'))
    assert rows[0]['status'] == 'disabled'
    assert rows[0]['disabled_reason'] == 'broken'
    run('host', 'enable', 'compute-1')
    shown = yaml.safe_load(run('host', 'show', 'compute-1')[1])
    assert shown[0].get('status') == 'enabled'
    run('host', 'remove', 'compute-1')
    assert len(printed_json(run('host', 'list', '-f', 'json'))) == 3
    for verb in (['disable'], ['remove'], ['show']):
        status, _, err = run('host', *verb, 'compute-1')
        assert (status, err.split(':')[0]) == (1, 'HostNotFound')


def names(result):
    """Return the hosts that a list printed, in its order."""
    return [row['host'] for row in printed_json(result)]


def test_hosts_are_listed_by_zone_aggregate_state_and_name(run):
    run('host', 'disable', 'compute-3', '--reason', 'broken')
    run('aggregate', 'create', 'fast')
    run('aggregate', 'add-host', 'fast', 'compute-2', 'compute-4')
    for options, expected in (
        ('--zone north', ['compute-1', 'compute-2']),
        ('--zone nova', ['compute-3', 'compute-4']),
        ('--zone nowhere', []),
        ('--aggregate fast', ['compute-2', 'compute-4']),
        ('--aggregate 1', ['compute-1', 'compute-2']),
        ('--aggregate fast --zone north', ['compute-2']),
        ('--status disabled', ['compute-3']),
        ('--state down', []),
        ('--state up --name *-[34]', ['compute-3', 'compute-4']),
        ('--name compute-?', [f'compute-{n}' for n in range(1, 5)]),
        ('--name COMPUTE-1', []),
    ):
        found = run('host', 'list', '-f', 'json', *options.split())
        assert names(found) == expected, options


def test_enable_and_disable_say_what_they_did(run):
    for words, now, before in (
        ('disable', 'disabled', 'enabled'),
        ('disable --reason broken', 'disabled (broken)', 'disabled'),
        ('disable --reason broken', 'disabled (broken)', 'disabled (broken)'),
        ('enable', 'enabled', 'disabled (broken)'),
        ('enable', 'enabled', 'enabled'),
    ):
        verb, *more = words.split()
        done = run('host', verb, 'compute-1', *more)
        text = f'Host compute-1 is {now}; it was {before}\n'
        assert done == (0, text, '')


def test_a_host_is_shown_with_place_capacity_claims_and_status(run, select):
    run('aggregate', 'create', 'fast', '--zone', 'south')
    run('aggregate', 'add-host', 'fast', 'compute-4')
    (place,) = json.loads(select(SMALL)[1])['placements']
    assert place['selected']['host'] == 'compute-4'

    def shown():
        status, out, err = run('host', 'show', 'compute-4')
        assert (status, err) == (0, '')
        return yaml.safe_load(out)[0]

    before = shown()
    assert (before['zone'], before['aggregates']) == ('south', ['fast'])
    assert before['capacity']['MEMORY_MB'] == {
        'total': 8196, 'reserved': 0, 'ratio': 1.0, 'capacity': 8196,
        'used': SMALL['memory_mb'], 'left': 8196 - SMALL['memory_mb'],
    }  # fmt: skip
    assert [(each['uuid'], each['state']) for each in before['claims']] == [
        (place['instance_uuid'], 'claimed')
    ]
    assert 'disabled' not in before
    user = pwd.getpwuid(os.getuid()).pw_name
    for words, by in (
        (['disable', 'compute-4', '--reason=a new disk'], user),
        (['disable', 'compute-3', '--reason', 'other'], user),
        (['disable', 'compute-4'], user),
        (['disable', 'compute-4', '--reason', "it's"], user),
    ):
        run('host', *words)
        reason = words[2:] and words[-1].rpartition('=')[2]
        told = shown()['disabled']
        if words[1] == 'compute-4':
            assert told['reason'] == (reason or None)
        since = datetime.fromisoformat(told['since'])
        assert (told['by'], since.tzinfo) == (by, UTC)


def test_a_host_that_no_command_disabled_does_not_say_by_whom(
    run, ready_sqlite
):
    run('host', 'disable', 'compute-1', '--reason', 'a disk')
    run('host', 'enable', 'compute-2')
    store = Store.connect(ready_sqlite)
    for host in ('compute-1', 'compute-2'):
        store.write(lambda w, h=host: hosts.set_status(w, h, False, 'its own'))
    store.dispose()
    for host in ('compute-1', 'compute-2'):
        (shown,) = yaml.safe_load(run('host', 'show', host)[1])
        assert shown['disabled'] == {
            'since': None, 'by': None, 'reason': 'its own'
        }  # fmt: skip


def test_hosts_that_nobody_uses_come_first(run, tmp_path):
    request = tmp_path / 'request.json'
    half = {'vcpus': 1, 'memory_mb': 4096, 'root_gb': 1}
    request.write_text(json.dumps({'flavor': half, 'num_instances': 2}))
    run('select', '--local', '--request', str(request))
    rows = printed_json(
        run('host', 'list', '--sort-column', 'used', '-f', 'json')
    )
    assert [row['host'] for row in rows[:2]] == ['compute-1', 'compute-2']
    assert [row['used'] for row in rows] == [0, 0, 50.0, 50.0]
    memory = 'memory_mb_used', 'memory_mb', 'memory_mb_capacity'
    assert [rows[3][name] for name in memory] == [4096, 8196, 8196]
    assert [rows[3][f'vcpus{end}'] for end in ('_used', '', '_capacity')] == [
        1, 8, 128,
    ]  # fmt: skip
    assert rows[3]['instances'] == 1
    assert rows[3]['zone'] == 'nova'


def test_refused_reports_of_a_host_are_shown(run, ready_sqlite):
    place = 'pci_device_pools[0].count: expected an integer'
    refusals = {name: Refusals(2, place) for name in ('compute-1', 'new')}
    store = Store.connect(ready_sqlite)
    for _ in range(2):
        store.write(
            lambda writer: host_reports.record_refusals(writer, refusals)
        )
    store.dispose()
    (shown,) = yaml.safe_load(run('host', 'show', 'compute-1')[1])
    assert shown['host'] == 'compute-1'
    assert shown['refused_reports']['count'] == 4
    assert shown['refused_reports']['last_reason'] == place
    status, _, err = run('host', 'show', 'new')
    assert (status, place in err) == (1, True)
    run('host', 'remove', 'compute-1')
    assert place not in run('host', 'show', 'compute-1')[2]


def test_odd_metadata_and_long_texts_are_refused(run):
    run('aggregate', 'create', 'ssd')
    for refused in (
        ('aggregate', 'create', 'x', '--property', 'cpu_allocation_ratio=inf'),
        ('aggregate', 'set', 'ssd', 'ram_weight_multiplier=1e308'),
        ('aggregate', 'add-host', 'ssd', 'x' * 256),
        ('aggregate', 'create', 'x' * 256),
        ('host', 'disable', 'compute-1', '--reason', 'x' * 20_000),
        ('pool', 'set', 'gold', 'x' * 256 + '=1'),
    ):
        status, _, err = run(*refused)
        assert (status, err.split(':')[0][:7]) == (1, 'Invalid')
    listed = printed_json(run('aggregate', 'list', '-f', 'json'))
    made = next(one for one in listed if one['name'] == 'ssd')
    assert (made['hosts'], made['metadata']) == ([], {})


def test_pools_change_when_commands_are_run(run):
    run('pool', 'create', 'new', '--attribute', 'l=new')
    run('pool', 'set', 'new', 'l=', 'fast=yes')
    pools = printed_json(run('pool', 'list', '-f', 'json'))
    assert {p['name']: p['attributes'] for p in pools}['new'] == {
        'fast': 'yes'
    }
    assert run('pool', 'create', 'new')[0] == 1
    assert run('pool', 'create', 'x', '--id', 'nonsense')[0] == 2
    assert run('pool', 'set', 'new', 'nonsense')[0] == 2
    run('pool', 'delete', 'new')
    assert run('pool', 'delete', 'new')[2].startswith('PoolNotFound')


def test_pool_is_not_deleted_when_it_has_zones(run):
    ask = ['zone', 'schedule', '--local', '--name', 'a.', '--attribute']
    answer = printed_json(run(*ask, 'l=gold', '-f', 'json'))
    assert answer['pool_name'] == 'gold'
    assert run('pool', 'delete', 'gold')[2].startswith('Conflict')
    zones = printed_json(run('zone', 'list', '-f', 'json'))
    assert [zone['name'] for zone in zones] == ['a.']


def test_aggregates_change_when_commands_are_run(run):
    run('aggregate', 'create', 'ssd', '--zone', 'south', '--property', 'a=b')
    run('aggregate', 'add-host', 'ssd', 'compute-3', 'compute-4')
    run('aggregate', 'remove-host', 'ssd', 'compute-4')
    run('aggregate', 'set', 'ssd', 'a=', 'c=d')
    listed = printed_json(run('aggregate', 'list', '-f', 'json'))
    made = next(one for one in listed if one['name'] == 'ssd')
    assert made['hosts'] == ['compute-3']
    assert made['metadata'] == {'availability_zone': 'south', 'c': 'd'}
    run('aggregate', 'delete', 'ssd')
    assert run('aggregate', 'delete', 'ssd')[0] == 1


def test_hosts_that_are_not_there_do_not_join_an_aggregate(run, tmp_path):
    run('aggregate', 'create', 'ssd')
    words = ('aggregate', 'add-host', 'ssd', 'compute-3', 'b', 'a')
    assert run(*words) == (1, '', 'HostNotFound: There is no host a, b\n')
    assert run('host', 'list', '--aggregate', 'ssd', '-f', 'value')[1] == ''
    # What is exported can be imported again.
    path = tmp_path / 'again.yaml'
    path.write_text(run('inventory', 'export')[1])
    assert run('inventory', 'import', '--replace', str(path))[0] == 0
    # Those that were imported before they report may stay, and others join.
    path.write_text('aggregates: [{id: 9, name: new, hosts: [late]}]\n')
    run('inventory', 'import', '--allow-missing-hosts', str(path))
    assert run('aggregate', 'add-host', 'new', 'late', 'compute-3')[0] == 0
    assert run('aggregate', 'remove-host', 'new', 'late')[0] == 0


def test_a_host_that_is_removed_leaves_its_aggregates(run, tmp_path):
    run('aggregate', 'create', 'ssd')
    run('aggregate', 'create', 'other')
    run('aggregate', 'add-host', 'ssd', 'compute-1', 'compute-3')
    run('aggregate', 'add-host', 'other', 'compute-3')
    assert run('host', 'remove', 'compute-1') == (
        0,
        'Host compute-1 is removed from aggregates aggregate-1 (1), '
        'ssd (2).\n',
        '',
    )
    listed = printed_json(run('aggregate', 'list', '-f', 'json'))
    assert {one['name']: one['hosts'] for one in listed} == {
        'aggregate-1': ['compute-2'],
        'ssd': ['compute-3'],
        'other': ['compute-3'],
    }
    path = tmp_path / 'again.yaml'
    path.write_text(run('inventory', 'export')[1])
    assert run('inventory', 'import', '--replace', str(path))[0] == 0
    # One that is in none is removed without a word.
    assert run('host', 'remove', 'compute-4') == (0, '', '')


def test_a_host_that_holds_claims_stays_in_its_aggregates(run, tmp_path):
    request = tmp_path / 'request.json'
    request.write_text(
        json.dumps({'flavor': SMALL, 'force_hosts': ['compute-1']})
    )
    assert run('select', '--local', '--request', str(request))[0] == 0
    status, out, err = run('host', 'remove', 'compute-1')
    assert (status, out) == (1, '')
    assert err.startswith('Conflict: Host compute-1 still holds')
    listed = run(
        'host', 'list', '--aggregate', '1', '-c', 'host', '-f', 'value'
    )
    assert listed[1] == 'compute-1\ncompute-2\n'


def test_a_host_gets_into_no_second_availability_zone(run):
    run('aggregate', 'create', 'south', '--zone', 'south')
    run('aggregate', 'create', 'more', '--zone', 'north')
    run('aggregate', 'create', 'none')

    def told(*words):
        status, _, err = run('aggregate', *words)
        assert (status == 0) is (err == '')
        return err

    add = ('add-host', 'south', 'compute-3', 'compute-1')
    refused = 'Conflict: Host compute-1 is in availability zone north by'
    assert told(*add).startswith(refused)
    assert told('add-host', 'south', 'compute-3') == ''
    # The same zone again, and aggregates without one, are no second zone.
    assert told('add-host', 'more', 'compute-1') == ''
    assert told('add-host', 'none', 'compute-1', 'compute-3') == ''
    assert told('set', 'none', 'availability_zone=north,south').startswith(
        refused
    )
    assert told('set', 'none', 'availability_zone=south').startswith(refused)
    assert told('remove-host', 'none', 'compute-1') == ''
    assert told('set', 'none', 'availability_zone=south') == ''
    zones = run('host', 'list', '-f', 'value', '-c', 'host', '-c', 'zone')[1]
    assert zones.splitlines() == [
        'compute-1 north', 'compute-2 north', 'compute-3 south',
        'compute-4 nova',
    ]  # fmt: skip


def test_aggregates_change_where_hosts_are_in_two_zones_already(run, tmp_path):
    """Those who mirror other databases store what these have."""
    path = tmp_path / 'more.yaml'
    path.write_text(
        'aggregates: [{id: 9, name: south, hosts: [compute-1],'
        ' metadata: {availability_zone: south}}]\n'
    )
    assert run('inventory', 'import', str(path))[0] == 0
    assert run('aggregate', 'set', 'south', 'a=b')[0] == 0
    assert run('aggregate', 'add-host', 'south', 'compute-1')[0] == 0
    assert run('aggregate', 'add-host', 'south', 'compute-3')[0] == 0
    assert run('aggregate', 'set', 'south', 'availability_zone=')[0] == 0
    assert run('aggregate', 'set', 'south', 'availability_zone=x')[0] == 1


def test_an_aggregate_is_named_by_its_id_where_several_have_the_name(
    run, tmp_path
):
    run('aggregate', 'create', 'ssd')
    status, _, err = run('aggregate', 'create', 'ssd')
    assert (status, err.split(':')[0]) == (1, 'Conflict')
    document = tmp_path / 'more.yaml'
    document.write_text('aggregates: [{id: 70, name: ssd}]\n')
    run('inventory', 'import', str(document))
    status, _, err = run('aggregate', 'delete', 'ssd')
    assert (status, err.split(':')[0]) == (1, 'Conflict')
    assert '70' in err
    assert run('aggregate', 'delete', '70')[0] == 0
    assert run('aggregate', 'delete', 'ssd')[0] == 0


def test_server_groups_change_when_commands_are_run(run):
    run('server-group', 'create', 'web', '--max-server-per-host', '2')
    group = printed_json(run('server-group', 'list', '-f', 'json'))[0]
    assert group['rules'] == {'max_server_per_host': 2}
    run('server-group', 'delete', group['uuid'])
    assert run('server-group', 'delete', group['uuid'])[0] == 1


def test_a_server_group_belongs_to_a_project_when_one_is_given(run):
    run('server-group', 'create', 'web', '--project', 'p')
    group = printed_json(run('server-group', 'list', '-f', 'json'))[0]
    assert group['project_id'] == 'p'
