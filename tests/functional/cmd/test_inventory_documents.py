"""Documents that operators write: all their errors, and what would change."""

import copy
import json
import uuid

import pytest
import yaml

from tests.support.commands import printed_json
from tests.support.documents import INVENTORY, SMALL

WRONG = """\
hosts:
- {host: a, memory_mb: lots, vcpus: -1}
- {host: b, statu: enabled}
aggregates:
- {id: 1, hosts: [a, compute-3]}
- {id: 1, hosts: [a]}
- id: 2
  hosts: [compute-33]
  hosts: [compute-33]
"""
FOUND = [
    '  {path}: line 9: hosts is there twice',
    '  hosts[0].memory_mb: expected an integer >= 0, got "lots"',
    '  hosts[0].vcpus: expected an integer >= 0, got -1',
    '  hosts[1].statu: unknown key; is status meant?',
    '  aggregates[1].id: 1 is a duplicate of aggregates[0]',
]
STORED = '  aggregates[0].hosts[1]: there is no host compute-3'
MISSING = '  aggregates[2].hosts[0]: there is no host compute-33'


@pytest.fixture
def write(tmp_path):
    """Give a function that writes a document; it returns its path."""

    def make(document):
        path = tmp_path / 'document.yaml'
        text = document if isinstance(document, str) else json.dumps(document)
        path.write_text(text)
        return str(path)

    return make


@pytest.mark.parametrize('verb', ['check', 'import', 'diff'])
def test_all_errors_of_a_document_are_printed(run, write, verb):
    path = write(WRONG)
    status, out, err = run('inventory', verb, path)
    assert (status, out) == (1, '')
    found = [line.format(path=path) for line in FOUND]
    # A check does not look into the database.
    if verb == 'check':
        found += [STORED, MISSING]
    else:
        found.append(f'{MISSING}; is compute-3 meant?')
    first, *rest = err.splitlines()
    assert first == f'InvalidInventory: {len(found)} errors in the document'
    assert rest == found


@pytest.mark.parametrize('verb', ['import', 'diff'])
def test_a_document_is_told_what_is_wrong_without_a_database(
    run, write, verb, tmp_path
):
    path = write(WRONG)
    config = tmp_path / 'other.conf'
    config.write_text('[database]\nconnection = sqlite:////no/folder/a\n')
    _, _, err = run('--config-file', str(config), 'inventory', verb, path)
    _, *rest = err.splitlines()
    assert rest == [line.format(path=path) for line in FOUND]


@pytest.mark.parametrize('verb', ['check', 'import', 'diff'])
def test_keys_that_are_there_twice_are_refused(run, write, verb):
    path = write('hosts:\n- host: a\n  host: b\n')
    status, _, err = run('inventory', verb, path)
    assert (status, err) == (
        1,
        f'InvalidInventory: {path}: line 3: host is there twice\n',
    )


@pytest.mark.parametrize('verb', ['check', 'import', 'diff'])
def test_numbers_that_json_cannot_say_are_refused(run, write, verb):
    path = write('hosts:\n- {host: a, stats: {x: .nan}}\n')
    status, _, err = run('inventory', verb, path)
    assert (status, err) == (
        1,
        f'InvalidInventory: {path}: cannot be read as YAML or JSON: '
        'line 2: .nan is not a finite number\n',
    )


def test_a_document_without_errors_is_counted(run, write):
    status, out, _ = run('inventory', 'check', write(INVENTORY))
    assert status == 0
    assert out.endswith('no errors: 2 pools, 4 hosts, 1 aggregates\n')


def test_aggregates_may_name_hosts_that_are_stored(run, write):
    path = write({'aggregates': [{'id': 2, 'hosts': ['compute-3']}]})
    assert run('inventory', 'check', path)[0] == 1
    assert run('inventory', 'check', path, '--allow-missing-hosts')[0] == 0
    assert run('inventory', 'import', path)[0] == 0
    # With --replace the host would be gone.
    status, _, err = run('inventory', 'import', '--replace', path)
    assert status == 1
    assert 'there is no host compute-3' in err


def test_aggregates_that_name_missing_hosts_are_refused(run, write):
    path = write({'aggregates': [{'id': 2, 'hosts': ['compute-33']}]})
    status, _, err = run('inventory', 'import', path)
    assert status == 1
    assert err == (
        'InvalidInventory: aggregates[0].hosts[0]: there is no host '
        'compute-33; is compute-3 meant?\n'
    )
    assert run('inventory', 'import', path, '--allow-missing-hosts')[0] == 0


def test_what_an_import_would_change_is_printed_and_not_changed(run, write):
    assert run('inventory', 'diff', write(INVENTORY))[0] == 0
    changed = copy.deepcopy(INVENTORY)
    changed['hosts'][0]['vcpus'] = 16
    changed['hosts'][1] = {'host': 'compute-9'}
    del changed['pools'][1]
    changed['aggregates'][0]['hosts'] = ['compute-1']
    path = write(changed)
    for _ in range(2):
        status, out, _ = run(
            'inventory', 'diff', '--replace', path, '-f', 'json'
        )
        assert status == 1
    rows = json.loads(out)
    told = [
        (row['kind'], row['name'], row['change'], row['field']) for row in rows
    ]
    assert told == [
        ('pools', 'gold', 'remove', None),
        ('hosts', 'compute-1', 'change', 'vcpus'),
        ('hosts', 'compute-2', 'remove', None),
        ('hosts', 'compute-9', 'add', None),
        ('aggregates', 'aggregate-1', 'change', 'hosts'),
    ]
    assert (rows[1]['stored'], rows[1]['wanted']) == (8, 16)
    report = printed_json(
        run('inventory', 'import', '--replace', path, '-f', 'json')
    )
    words = {'add': 'added', 'change': 'changed', 'remove': 'removed'}
    for row in report:
        for change, column in words.items():
            names = {
                name
                for kind, name, what, _ in told
                if (kind, what) == (row['kind'], change)
            }
            assert row[column] == len(names), (row, change)
    assert run('inventory', 'diff', '--replace', path)[0] == 0


def test_claims_made_since_are_no_difference(run, write, tmp_path):
    request = tmp_path / 'request.json'
    request.write_text(json.dumps({'flavor': SMALL, 'num_instances': 3}))
    assert run('select', '--local', '--request', str(request))[0] == 0
    assert run('inventory', 'diff', write(INVENTORY))[0] == 0
    exported = yaml.safe_load(run('inventory', 'export')[1])
    assert run('inventory', 'diff', write(exported))[0] == 0


def test_groups_that_have_members_stay_and_are_named(run, write):
    members = [str(uuid.UUID(int=n)) for n in (1, 2)]
    web, db, unused = (str(uuid.UUID(int=n)) for n in (7, 8, 9))
    grouped = {
        **INVENTORY,
        'instances': [
            {'uuid': member, 'host': 'compute-1'} for member in members
        ],
        'server_groups': [
            {'uuid': web, 'name': 'web', 'policy': 'affinity',
             'members': members},
            {'uuid': db, 'policy': 'anti-affinity', 'members': members[:1]},
            {'uuid': unused, 'name': 'unused', 'policy': 'affinity'},
        ],
    }  # fmt: skip
    assert run('inventory', 'import', write(grouped))[0] == 0
    path = write({key: grouped[key] for key in (*INVENTORY, 'instances')})
    status, out, err = run(
        'inventory', 'diff', '--replace', path, '-f', 'value'
    )
    assert (status, out.split()[:3]) == (
        1, ['server_groups', 'unused', 'remove']
    )  # fmt: skip
    told = f'since instances are members of them: {db}, web ({web})\n'
    assert err == f'--replace: 2 server groups would stay, {told}'
    imported = run('inventory', 'import', '--replace', path, '-f', 'json')
    assert imported[2] == f'--replace: 2 server groups stay, {told}'
    counts = {one['kind']: one for one in printed_json(imported)}
    assert counts['server_groups'] == {
        'kind': 'server_groups', 'added': 0, 'changed': 0, 'removed': 1,
        'same': 2,
    }  # fmt: skip
    assert run('inventory', 'diff', '--replace', path)[0] == 0
    assert run('inventory', 'diff', path)[2] == ''
