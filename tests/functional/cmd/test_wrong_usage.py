"""Command lines that are wrong end with 2; what matches nothing is told."""

import json
import subprocess
import sys

from tests.support.commands import printed_json
from tests.support.waiting import LIMIT_S

UUID = '22222222-0000-4000-8000-000000000001'


WRONG = [
    ('host list --column nope', 'there is no column nope; there are'),
    ('host list --sort-column nope', 'there is no column nope; there are'),
    ('host list --limit -1', 'not a number from 0'),
    ('host list --limit x', 'not a number from 0'),
    ('policy check -c nope', 'there is no column nope; there are rule'),
    ('capacity --flavor vcpus=1 -c nope', 'there is no column nope'),
    ('capacity --flavor vcpus=x', 'argument --flavor: flavor.vcpus: '),
    ('capacity --flavor vcpus=1,x', 'expected KEY=VALUE, got x'),
    ('capacity --by host', 'host needs --flavor or --flavors'),
    ('capacity --by aggregate', 'aggregate needs --flavor'),
    ('pool create a --id b', 'argument --id: b: not a UUID'),
    ('pool create a --attribute b', 'expected KEY=VALUE, got b'),
    ('pool set gold =b', 'expected KEY=VALUE, got =b'),
    ('aggregate create a --property b', 'expected KEY=VALUE, got b'),
    ('aggregate set 1 b', 'expected KEY=VALUE, got b'),
    ('server-group create a --uuid b', 'b: not a UUID'),
    ('server-group create a --member b', 'b: not a UUID'),
    ('server-group create a --max-server-per-host 0', 'number from 1'),
    (
        'server-group create a --policy affinity --max-server-per-host 2',
        'only the policy anti-affinity has it, got affinity',
    ),
    ('zone schedule --local --name a. --attribute b', 'got b'),
    ('inventory import --replace --from-nodes a', 'needs a document'),
    ('decision list --outcome NoValidHots', 'is NoValidHost meant?'),
]


def test_wrong_usage_ends_with_the_status_of_the_parser(run):
    for line, told in WRONG:
        status, out, err = run(*line.split())
        assert (status, out) == (2, ''), line
        first, *_, last = err.splitlines()
        words = [word for word in line.split()[:2] if word[0] != '-']
        assert first.startswith(f'usage: scheduler-manage {" ".join(words)}')
        assert last.startswith('scheduler-manage ')
        assert told in last, line


def test_the_program_ends_with_the_status(run, tmp_path):
    done = subprocess.run(
        [sys.executable, '-m', 'scheduler_service.cmd.manage',
         '--timeout', '60', '--config-file', str(tmp_path / 'a.conf'),
         'host', 'list', '--column', 'nope'],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, '')
    assert 'there is no column nope' in done.stderr


def test_nothing_is_imported_where_a_column_does_not_exist(run, tmp_path):
    path = tmp_path / 'more.yaml'
    path.write_text('hosts: [{host: more}]\n')
    for words in (['--column', 'nope'], ['--sort-column', 'nope']):
        assert run('inventory', 'import', str(path), *words)[0] == 2
    assert run('host', 'show', 'more')[0] == 1


def test_the_columns_of_a_list_without_rows_are_known(run):
    assert run('host', 'list', '--name', 'none', '-c', 'aggregates')[0] == 0


UNKNOWN = [
    ('capacity --zone nroth', 'there are north, nova; is north meant?'),
    ('capacity --flavor vcpus=1 --zone x', 'there are north, nova'),
    ('host list --zone x', 'there are north, nova'),
    ('host list --aggregate x', 'there are 1, '),
    ('decision list --filter RamFiltr',
     'there are CoreFilter, RamFilter; is RamFilter meant?'),
    ('decision list --host compte-3',
     'there are compute-1, compute-2, compute-3, compute-4; '
     'is compute-3 meant?'),
    ('claim list --state claimed --host compte-3',
     'compute-4; is compute-3 meant?'),
]  # fmt: skip


def test_a_value_that_nothing_has_is_told(run, tmp_path):
    request = tmp_path / 'request.json'
    for flavor in ({'vcpus': 999}, {'vcpus': 1, 'memory_mb': 99_999}):
        request.write_text(json.dumps({'flavor': flavor}))
        run('select', '--local', '--request', str(request))
    for line, told in UNKNOWN:
        status, out, err = run(*line.split(), '-f', 'json')
        assert (status, json.loads(out)) == (0, [])
        option, value = line.split()[-2:]
        assert err.startswith(f'{option} {value}: nothing matches; there are ')
        assert told in err, line
        assert err.count('\n') == 1


def test_nothing_is_told_of_a_value_that_is_known(run):
    run('aggregate', 'create', 'empty', '--zone', 'south')
    for line in (
        'capacity --zone south', 'host list --zone south',
        'host list --aggregate empty', 'decision list --outcome chosen',
        'decision list --host compute-1', 'claim list --host compute-1',
        'decision list --project p', 'claim list --project p',
    ):  # fmt: skip
        result = run(*line.split(), '-f', 'json')
        assert (printed_json(result), result[2]) == ([], ''), line
