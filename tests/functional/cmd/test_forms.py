"""Each list in each form, and files and interrupts that nobody expects."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys

import pytest
import yaml

from scheduler_service.cmd.parser import COMMANDS, Lister
from tests.support.documents import SMALL

ODD = 'a\x7f\x9b\u200b\u202e'
FORMS = ('table', 'value', 'csv', 'json', 'yaml')
# Lists that need no more than a database; the others change something.
LISTS = [
    words
    for words, command in COMMANDS.items()
    if issubclass(command, Lister) and words.endswith(' list')
] + ['capacity', 'configuration show', 'inventory show']


@pytest.mark.parametrize('words', LISTS)
def test_each_list_has_each_form(run, select, words):
    assert select(SMALL, availability_zone=None)[0] == 0
    status, *_ = run('aggregate', 'create', ODD)
    assert status == 0
    rows = None
    for form in FORMS:
        status, out, err = run(*words.split(), '-f', form)
        assert (status, 'Error' in err) == (0, False), (form, err)
        assert out.replace('\n', '').replace('\r', '').isprintable()
        if form in ('json', 'yaml'):
            read = json.loads if form == 'json' else yaml.safe_load
            found = read(out)
            # Whole seconds, which go on between two lists.
            ages = [row.pop('age_s') for row in found if 'age_s' in row]
            assert all(isinstance(age, int) and age >= 0 for age in ages)
            rows = found if rows is None else rows
            assert found == rows
        elif form == 'csv':
            heads = next(csv.reader(io.StringIO(out)))
            assert len(heads) >= 1
    if words == 'aggregate list':
        assert ODD in [row['name'] for row in rows]


@pytest.mark.parametrize(
    'words',
    ['inventory check', 'inventory import', 'inventory diff',
     'inventory import --from-nodes', 'select --local --request'],
)  # fmt: skip
def test_a_file_without_end_is_named(run, tmp_path, words):
    status, _, err = run(*words.split(), '/dev/zero')
    assert (status, '/dev/zero: File too large' in err) == (1, True), err
    path = tmp_path / 'a.yaml'
    path.write_text('hosts: &a [*a]')
    status, _, err = run(*words.split(), str(path))
    assert (status, 'a value contains itself' in err) == (1, True), err
    assert 'not expected' not in err


_INTERRUPTED = """
import builtins, os, signal, sys
sys.argv = ['{program}', '--help']
# Sent as this module is imported, after the {count} ones before it.
whole, left = builtins.__import__, {count}

def importing(name, *rest):
    global left
    if 'scheduler_service.cmd' in sys.modules:
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGINT)
    return whole(name, *rest)

builtins.__import__ = importing
from scheduler_service.cmd.{module} import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ('program', 'module'),
    [('scheduler-manage', 'manage'), ('scheduler-service', 'service'),
     ('scheduler-status', 'status'), ('scheduler-quickstart', 'quickstart')],
)  # fmt: skip
@pytest.mark.parametrize('count', [10, 100])
def test_an_interrupt_while_modules_are_imported_prints_nothing(
    program, module, count
):
    code = _INTERRUPTED.format(program=program, module=module, count=count)
    ended = subprocess.run(
        [sys.executable, '-c', code],
        capture_output=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.default_int_handler
        ),
    )
    assert ended.returncode in (130, -signal.SIGINT)
    assert ended.stderr == b''
