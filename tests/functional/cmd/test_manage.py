"""The operator's commands, run as an operator runs them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

from scheduler_service.store.connection import Store
from scheduler_service.store.records.daemons import Registration, register
from scheduler_service.store.schema import VERSION
from tests.support import kube
from tests.support.commands import printed_json

# Runs a command, and prints which modules are loaded at its end.
_LOADED = (
    'import atexit, sys; from scheduler_service.cmd import manage;'
    'atexit.register(lambda: print(*sys.modules)); manage.main(sys.argv[1:])'
)


def test_db_commands_succeed_when_the_tables_are_current(run):
    assert run('db', 'version')[1] == f'tables {VERSION}, release {VERSION}\n'
    assert run('db', 'check')[0] == 0
    assert run('db', 'sync')[0] == 0


def test_inventory_show_counts_what_was_imported(run):
    rows = printed_json(run('inventory', 'show', '-f', 'json'))
    counts = {row['what']: row['count'] for row in rows}
    assert counts['hosts'] == 4
    assert counts['VCPU in all'] == 32


def test_nothing_is_imported_when_the_document_is_wrong(run, tmp_path):
    wrong = tmp_path / 'wrong.yaml'
    wrong.write_text('hosts: [{host: new}, {host: b, memory_mb: lots}]')
    status, _, err = run('inventory', 'import', str(wrong))
    assert status == 1
    assert err == (
        'InvalidInventory: hosts[1].memory_mb: expected an integer >= 0, '
        'got "lots"\n'
    )
    assert len(printed_json(run('host', 'list', '-f', 'json'))) == 4


def test_hosts_are_removed_when_import_replaces(run, tmp_path):
    exported = run('inventory', 'export')[1]
    assert len(yaml.safe_load(exported)['hosts']) == 4
    again = tmp_path / 'again.yaml'
    again.write_text(exported)
    counts = printed_json(run('inventory', 'import', str(again), '-f', 'json'))
    assert {row['kind']: row['changed'] for row in counts}['hosts'] == 0
    again.write_text('hosts: [{host: compute-1}]')
    run('inventory', 'import', '--replace', str(again))
    assert len(printed_json(run('host', 'list', '-f', 'json'))) == 1
    assert run('inventory', 'import', str(tmp_path / 'no'))[0] == 1


def test_help_loads_no_heavy_library_when_printed():
    # The heavy libraries are loaded by the commands that need them.
    told = subprocess.run(
        [sys.executable, '-c',
         'import atexit, sys; from scheduler_service.cmd import manage;'
         'atexit.register(lambda: print([m for m in ("numpy", "sqlalchemy",'
         '"oslo_messaging") if m in sys.modules])); manage.main(["--help"])'],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for noun in ('db', 'inventory', 'select', 'decision'):
        assert noun in told
    assert told.endswith('[]\n')


@pytest.mark.parametrize(
    ('command', 'heavy'),
    [
        ('decision list --project p',
         'numpy prometheus_client yaml sqlalchemy.dialects.postgresql'),
        ('history host x', 'prometheus_client scheduler_service.plugins'),
        ('host list', 'scheduler_service.plugins'),
        ('why x', ''),
    ],
)  # fmt: skip
def test_reading_commands_load_only_what_they_need(
    tmp_path, ready_sqlite, command, heavy
):
    config = tmp_path / 'a.conf'
    config.write_text(f'[database]\nconnection = {ready_sqlite}\n')
    found = subprocess.run(
        [sys.executable, '-c', _LOADED, f'--config-file={config}',
         *command.split()],
        capture_output=True, text=True,
    )  # fmt: skip
    loaded = set(found.stdout.splitlines()[-1].split())
    assert 'sqlalchemy' in loaded, found.stderr
    no_reader_needs = 'oslo_messaging kombu urllib3 alembic aiohttp jinja2'
    assert loaded.isdisjoint([*no_reader_needs.split(), *heavy.split()])


def test_nodes_of_a_cluster_are_imported_as_hosts(run, tmp_path):
    path = tmp_path / 'nodes.json'
    labels = {'topology.kubernetes.io/zone': 'west'}
    nodes = [kube.node('n1', labels=labels), kube.node('n2', ready='False')]
    path.write_text(json.dumps({'kind': 'List', 'items': nodes}))
    command = ('inventory', 'import', '--from-nodes', str(path))
    rows = printed_json(run(*command, '-f', 'json'))
    assert {row['kind']: row['added'] for row in rows}['hosts'] == 2
    hosts = {one['host']: one for one in exported(run)['hosts']}
    assert hosts['n1']['memory_mb'] == 65536
    assert hosts['n2']['state'] == 'down'
    zones = {one['name']: one['hosts'] for one in exported(run)['aggregates']}
    assert zones['kubernetes:availability_zone=west'] == ['n1']
    rows = printed_json(run(*command, '-f', 'json'))
    assert {row['kind']: row['same'] for row in rows}['hosts'] == 2
    assert 'needs a document' in run(*command, '--replace')[2]
    path.write_text('{"kind": "List"}')
    assert 'items' in run(*command)[2]


def exported(run):
    return yaml.safe_load(run('inventory', 'export')[1])


def test_a_configuration_is_checked_without_a_start(run, tmp_path):
    status, out, _ = run('configuration', 'check')
    assert (status, out.split()[:4]) == (0, ['A', 'daemon', 'can', 'start'])
    path = tmp_path / 'b.conf'
    rules = tmp_path / 'rules.yaml'
    rules.write_text('"ping": "role:x and"')
    for text, word in (
        ('[filter_scheduler]\nenabled_filters = CoreFiltre\n', 'CoreFilter?'),
        ('[filter_scheduler]\navailable_filters = os.path.join\n',
         'os.path.join is neither a class nor a function'),
        ('[pool_scheduler]\nscheduler_filters = atribute\n', 'attribute?'),
        ('[scheduler]\nbatch_size = lots\n', 'batch_size'),
        ("[pci]\nalias = {'name': 'nic'}\n", 'in double quotes'),
        ('[pci]\nalias = {"name": "nic"}\n', 'vendor_id and product_id'),
        ('[pci]\nalias = {"name": "a", "vendor_id": "8086", '
         '"product_id": "1572", "numa_policy": "near"}\n',
         'socket as numa_policy'),
        ('[database]\nconnection =\n', 'connection is not set'),
        ('[database]\nconnection = mysql+pymysql://u:s3cret@h/x?foo=bar\n',
         "got an unexpected keyword argument 'foo'"),
        ('[database]\nconnection = postgresql+psycopg://u@h/x?foo=bar\n',
         'invalid connection option "foo"'),
        ('[DEFAULT]\ntransport_url = kafka://u:s3cret@127.0.0.1\n',
         'there is no driver kafka, only rabbit and inproc'),
        ('[DEFAULT]\nuse_syslog = true\nsyslog_log_facility = x\n',
         'syslog_log_facility: there is no x'),
        ('[extender]\npolicy_file = /none\n', '/none'),
        ('[http]\nbind_port = 1\ncert_file = /none\n', '/none'),
        ('[DEFAULT]\ntransport_url = bogus://\n', 'transport_url'),
        (f'[oslo_policy]\npolicy_file = {rules}\n', 'ping'),
        ('[DEFAULT]\ndefault_log_levels = a=LOUD\n', 'LOUD'),
    ):  # fmt: skip
        path.write_text(f'[database]\nconnection = sqlite://\n{text}')
        status, out, err = run('configuration', 'check', str(path))
        assert (status, out) == (1, ''), text
        assert err.startswith(('ConfigurationError: ', 'FilterNotFound: '))
        assert word in err
        assert 's3cret' not in err
    path.write_text('[extender]\nthreads = 0\n')
    status, _, err = run('--config-file', str(path), 'configuration', 'show')
    assert (status, '[extender] threads' in err) == (1, True)
    path.write_text('[database]\nconnection = sqlite://\n[scheduler]\nx = 1\n')
    status, out, _ = run('configuration', 'check', str(path))
    assert status == 1
    assert '[scheduler] x: there is no such option' in out


def test_check_names_policies_of_groups_that_nothing_enforces(
    run, tmp_path, ready_sqlite
):
    path = tmp_path / 'b.conf'
    path.write_text(
        f'[database]\nconnection = {ready_sqlite}\n'
        '[filter_scheduler]\nenabled_filters = RamFilter\n'
    )
    assert run('configuration', 'check', str(path))[::2] == (0, '')
    run('server-group', 'create', 'apart', '--policy', 'anti-affinity')
    assert run('configuration', 'check')[::2] == (0, '')
    status, out, err = run('configuration', 'check', str(path))
    assert (status, err) == (1, '')
    assert out.splitlines() == [
        'policy of server groups that nothing enforces: anti-affinity '
        '(groups: 1): ServerGroupAntiAffinityFilter is not enabled '
        '(enabled_filters)',
        f'A daemon can start with {path}',
    ]
    path.write_text('[database]\nconnection = sqlite://\n')
    status, _, err = run('configuration', 'check', str(path))
    assert status == 0
    assert err.startswith('Stored server groups are not checked: ')


def test_a_time_before_the_first_configuration_is_that_one(run, ready_sqlite):
    store = Store.connect(ready_sqlite)
    for number in (1, 2):
        options = {'scheduler': {'batch_size': {'value': number}}}
        entry = Registration('id', 'one', '1', str(number), options)
        store.write(lambda writer, entry=entry: register(writer, entry))
    store.dispose()
    status, out, err = run('configuration', 'diff', '1d', '1m')
    assert (status, err.count('the first configuration was')) == (0, 2)
    words = 'configuration', 'diff', '1d', '9999-01-01', '-f', 'value'
    assert run(*words)[0] == 0
    status, out, err = run(*words, '--exit-code')
    assert (status, out) == (1, '[scheduler] batch_size 1 2\n')
    assert err.startswith('1d: the first configuration was recorded later, at')


def test_an_export_is_written_to_a_file(run, tmp_path):
    path = tmp_path / 'all.yaml'
    assert run('inventory', 'export', '--output', str(path))[:2] == (0, '')
    assert path.read_text() == run('inventory', 'export')[1]
