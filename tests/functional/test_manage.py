"""The operator's commands, run as an operator runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest
import yaml

from scheduler_service.cmd import manage
from tests.functional.conftest import INVENTORY, SMALL


@pytest.fixture
def run(tmp_path, capsys):
    """Give a function that runs a command: (status, output, errors)."""
    config = tmp_path / 'a.conf'
    config.write_text(
        f'[database]\nconnection = sqlite:///{tmp_path}/a.sqlite\n'
        '[pool_scheduler]\nscheduler_filters = attribute, random\n'
    )
    (tmp_path / 'inventory.yaml').write_text(yaml.safe_dump(INVENTORY))

    def command(*args: str) -> tuple[int, str, str]:
        status = manage.main(['--config-file', str(config), *args])
        told = capsys.readouterr()
        return status, told.out, told.err

    command('db', 'sync')
    command('inventory', 'import', str(tmp_path / 'inventory.yaml'))
    return command


def found(told: tuple[int, str, str]) -> Any:
    assert told[0] == 0, told
    return json.loads(told[1])


def test_db_verbs(run):
    assert '0003' in run('db', 'version')[1]
    assert run('db', 'check')[0] == 0
    assert run('db', 'sync')[0] == 0


def test_db_check_says_that_tables_are_missing(tmp_path, capsys):
    config = tmp_path / 'b.conf'
    config.write_text(f'[database]\nconnection=sqlite:///{tmp_path}/b.db\n')
    assert manage.main(['--config-file', str(config), 'db', 'check']) == 1
    assert 'db sync' in capsys.readouterr().out
    assert manage.main(['--config-file', str(config), 'host', 'list']) == 1
    assert 'db sync' in capsys.readouterr().err


def test_import_tells_the_place_of_an_error_and_writes_nothing(run, tmp_path):
    wrong = tmp_path / 'wrong.yaml'
    wrong.write_text('hosts: [{host: new}, {host: b, memory_mb: lots}]')
    status, _, err = run('inventory', 'import', str(wrong))
    assert status == 1
    assert err == (
        'InvalidInventory: hosts[1].memory_mb: expected an integer >= 0, '
        'got "lots"\n'
    )
    assert len(found(run('host', 'list', '-f', 'json'))) == 4


def test_import_export_and_replace(run, tmp_path):
    exported = run('inventory', 'export')[1]
    assert len(yaml.safe_load(exported)['hosts']) == 4
    again = tmp_path / 'again.yaml'
    again.write_text(exported)
    counts = found(run('inventory', 'import', str(again), '-f', 'json'))
    assert {row['kind']: row['changed'] for row in counts}['hosts'] == 0
    again.write_text('hosts: [{host: compute-1}]')
    run('inventory', 'import', '--replace', str(again))
    assert len(found(run('host', 'list', '-f', 'json'))) == 1
    assert run('inventory', 'import', str(tmp_path / 'no'))[0] == 1


def test_show_counts(run):
    rows = found(run('inventory', 'show', '-f', 'json'))
    counts = {row['what']: row['count'] for row in rows}
    assert counts['hosts'] == 4
    assert counts['VCPU in all'] == 32


def test_host_verbs(run):
    run('host', 'disable', 'compute-1', '--reason', 'broken')
    rows = found(run('host', 'list', '-f', 'json'))
    assert rows[0]['status'] == 'disabled'
    assert rows[0]['disabled_reason'] == 'broken'
    run('host', 'enable', 'compute-1')
    shown = yaml.safe_load(run('host', 'show', 'compute-1')[1])
    assert shown[0].get('status') == 'enabled'
    run('host', 'remove', 'compute-1')
    assert len(found(run('host', 'list', '-f', 'json'))) == 3
    for verb in (['disable'], ['remove'], ['show']):
        status, _, err = run('host', *verb, 'compute-1')
        assert (status, err.split(':')[0]) == (1, 'HostNotFound')


def test_pool_verbs(run):
    run('pool', 'create', 'new', '--attribute', 'l=new')
    run('pool', 'set', 'new', 'l=', 'fast=yes')
    pools = found(run('pool', 'list', '-f', 'json'))
    assert {p['name']: p['attributes'] for p in pools}['new'] == {
        'fast': 'yes'
    }
    assert run('pool', 'create', 'new')[0] == 1
    assert run('pool', 'create', 'x', '--id', 'nonsense')[0] == 1
    assert run('pool', 'set', 'new', 'nonsense')[0] == 1
    run('pool', 'delete', 'new')
    assert run('pool', 'delete', 'new')[2].startswith('PoolNotFound')


def test_a_pool_with_zones_stays(run):
    ask = ['zone', 'schedule', '--local', '--name', 'a.', '--attribute']
    answer = found(run(*ask, 'l=gold', '-f', 'json'))
    assert answer['pool_name'] == 'gold'
    assert run('pool', 'delete', 'gold')[2].startswith('Conflict')
    zones = found(run('zone', 'list', '-f', 'json'))
    assert [zone['name'] for zone in zones] == ['a.']


def test_aggregate_verbs(run):
    run('aggregate', 'create', 'ssd', '--zone', 'south', '--property', 'a=b')
    run('aggregate', 'add-host', 'ssd', 'compute-3', 'compute-4')
    run('aggregate', 'remove-host', 'ssd', 'compute-4')
    run('aggregate', 'set', 'ssd', 'a=', 'c=d')
    listed = found(run('aggregate', 'list', '-f', 'json'))
    made = next(one for one in listed if one['name'] == 'ssd')
    assert made['hosts'] == ['compute-3']
    assert made['metadata'] == {'availability_zone': 'south', 'c': 'd'}
    run('aggregate', 'delete', 'ssd')
    assert run('aggregate', 'delete', 'ssd')[0] == 1


def test_server_group_verbs(run):
    run('server-group', 'create', 'web', '--max-server-per-host', '2')
    group = found(run('server-group', 'list', '-f', 'json'))[0]
    assert group['rules'] == {'max_server_per_host': 2}
    run('server-group', 'delete', group['uuid'])
    assert run('server-group', 'delete', group['uuid'])[0] == 1


def test_select_on_the_store_with_reasons_and_afterwards(run, tmp_path):
    request = tmp_path / 'r.json'
    request.write_text(json.dumps({'request_id': 'req-1', 'flavor': SMALL}))
    ask = ['select', '--local', '--request', str(request)]
    dry = found(run(*ask, '--dry-run', '-f', 'json'))
    assert dry['placements'][0]['selected']['host'] == 'compute-4'
    assert 'finalists' not in str(dry['explanation'])
    table = run(*ask, '--explain')[1]
    assert 'compute-4' in table
    assert 'RamFilter' in table
    kept = found(run('decision', 'show', 'req-1', '-f', 'json'))
    assert kept[0]['outcome'] == 'chosen'
    assert 'chosen' in run('decision', 'list')[1]
    assert 'RAMWeigher' in run('decision', 'show', 'req-1')[1]
    uuid = kept[0]['placements'][0]['instance_uuid']
    assert '1 of 1' in run('release', '--local', uuid)[1]
    assert run('decision', 'show', 'nothing')[0] == 1


def test_select_says_why_not(run, tmp_path):
    request = tmp_path / 'r.json'
    request.write_text(json.dumps({'flavor': {'memory_mb': 99999}}))
    ask = ['select', '--local', '--request', str(request)]
    status, _, err = run(*ask)
    assert status == 1
    assert 'RamFilter' in err
    assert 'closest: compute-4' in err
    assert 'RamFilter' in run(*ask, '--host', 'compute-1')[1]
    status, out, err = run(*ask, '--explain')
    assert (status, 'closest: compute-4' in err) == (1, True)
    assert 'Filters that reject hosts' in out
    status, out, _ = run(*ask, '--explain', '-f', 'json')
    refusal = json.loads(out)['error']
    assert (status, refusal['name']) == (1, 'NoValidHost')
    assert refusal['facts']['funnel'][-1]['end'] == 0


def test_zone_schedule_says_why_not(run):
    ask = ['zone', 'schedule', '--local', '--name', 'z.', '--explain']
    status, out, err = run(*ask, '--attribute', 'tier=none')
    assert status == 1
    assert 'NoValidPoolFound' in err
    assert 'attribute' in out


def test_a_request_that_cannot_be_read_is_an_invalid_request(run, tmp_path):
    request = tmp_path / 'r.json'
    request.write_text('{"flavor": ')
    ask = ['select', '--local', '--request']
    for path in (str(request), str(tmp_path / 'nothing.json')):
        status, _, err = run(*ask, path)
        assert status == 1
        assert err.startswith(f'InvalidRequest: {path}: ')


def test_select_asks_the_daemon_and_says_when_none_answers(
    run, tmp_path, make_service, capsys
):
    request = tmp_path / 'r.json'
    request.write_text(json.dumps({'flavor': SMALL}))
    service = make_service()
    config = tmp_path / 'c.conf'
    config.write_text(f'[DEFAULT]\ntransport_url = {service.url}\n')
    ask = ['--config-file', str(config), 'select', '--request', str(request)]
    assert manage.main([*ask, '--explain']) == 0
    assert 'compute-4' in capsys.readouterr().out
    assert manage.main([*ask, '--host', 'compute-1']) == 0
    assert manage.main(['--config-file', str(config), 'ping']) == 0
    zone = ['zone', 'schedule', '--name', 'z.', '--explain']
    assert manage.main(['--config-file', str(config), *zone]) == 0
    assert 'default' in capsys.readouterr().out
    config.write_text(
        '[DEFAULT]\ntransport_url = inproc://nobody/\n'
        'rpc_response_timeout = 1\n'
    )
    assert manage.main(ask) == 1
    assert 'No daemon answered' in capsys.readouterr().err


def test_an_argument_that_is_not_text_is_named(run):
    status, _, err = run('aggregate', 'create', 'a\udcff')
    assert status == 1
    assert err.startswith("InvalidRequest: 'a\\udcff': not text")


def test_a_configuration_that_is_not_there_is_named(capsys):
    assert manage.main(['--config-file', '/nowhere', 'db', 'sync']) == 1
    assert 'ConfigurationError' in capsys.readouterr().err


def test_help_is_quick_and_complete():
    command = [sys.executable, '-m', 'scheduler_service.cmd.manage']
    started = time.monotonic()
    told = subprocess.run(
        [*command, '--help'], capture_output=True, text=True, check=True
    )
    assert time.monotonic() - started < 20
    for noun in ('db', 'inventory', 'select', 'decision'):
        assert noun in told.stdout
    # The heavy libraries are loaded by the commands that need them.
    loaded = subprocess.run(
        [sys.executable, '-c',
         'import sys; from scheduler_service.cmd import manage, parser;'
         'parser.build(); print([m for m in ("numpy", "sqlalchemy",'
         '"oslo_messaging") if m in sys.modules])'],
        capture_output=True, text=True, check=True, env=dict(os.environ),
    )  # fmt: skip
    assert loaded.stdout.strip() == '[]'
