"""Commands on hosts, pools, aggregates and groups."""

from __future__ import annotations

import yaml

from tests.support.commands import printed_json


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


def test_pools_change_when_commands_are_run(run):
    run('pool', 'create', 'new', '--attribute', 'l=new')
    run('pool', 'set', 'new', 'l=', 'fast=yes')
    pools = printed_json(run('pool', 'list', '-f', 'json'))
    assert {p['name']: p['attributes'] for p in pools}['new'] == {
        'fast': 'yes'
    }
    assert run('pool', 'create', 'new')[0] == 1
    assert run('pool', 'create', 'x', '--id', 'nonsense')[0] == 1
    assert run('pool', 'set', 'new', 'nonsense')[0] == 1
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


def test_server_groups_change_when_commands_are_run(run):
    run('server-group', 'create', 'web', '--max-server-per-host', '2')
    group = printed_json(run('server-group', 'list', '-f', 'json'))[0]
    assert group['rules'] == {'max_server_per_host': 2}
    run('server-group', 'delete', group['uuid'])
    assert run('server-group', 'delete', group['uuid'])[0] == 1
