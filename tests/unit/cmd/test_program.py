"""How programs end: streams that are closed or full, errors in one line."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys

import pytest

from scheduler_service import errors
from scheduler_service.cmd import manage, program, service, status
from tests.support.waiting import LIMIT_S

PROGRAMS = {manage: 1, status: 255, service: 1}


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    """Have streams and signals afterwards as they were before."""
    numbers = signal.SIGINT, signal.SIGHUP, signal.SIGUSR2
    before = {number: signal.getsignal(number) for number in numbers}
    for name in ('stdin', 'stdout', 'stderr'):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(name: str, line: str) -> subprocess.CompletedProcess[str]:
    """Run a program as a shell does."""
    return subprocess.run(
        f'{sys.executable} -m scheduler_service.cmd.{name} {line}',
        shell=True, capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize('main', PROGRAMS)
def test_a_full_disk_is_named_whatever_is_printed(main, capsys, monkeypatch):
    words = 'completion' if main is manage else '--shell_completion'
    with open('/dev/full', 'w') as full:
        monkeypatch.setattr(sys, 'stdout', full)
        assert main.main([words, 'bash']) == PROGRAMS[main]
    assert capsys.readouterr().err == (
        'OSError: standard output: No space left on device\n'
    )


@pytest.mark.parametrize('main', PROGRAMS)
def test_a_program_runs_where_its_streams_are_closed(main, monkeypatch):
    for name in ('stdin', 'stdout', 'stderr'):
        monkeypatch.setattr(sys, name, None)
    with pytest.raises(SystemExit) as ended:
        main.main(['--version'])
    assert not ended.value.code
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()


def test_an_error_does_not_go_to_standard_output(tmp_path):
    done = run('service', f'--config-file {tmp_path}/none <&- 2>&-')
    assert (done.returncode, done.stdout) == (1, '')


def test_checks_say_in_a_line_that_a_file_cannot_be_read(tmp_path, capsys):
    words = ['--config-file', str(tmp_path), 'upgrade', 'check']
    assert status.main(words) == 255
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f'OSError: {tmp_path}: Is a directory'


@pytest.mark.parametrize('name', ['manage', 'service'])
def test_an_interrupted_program_says_nothing(name, tmp_path):
    config = tmp_path / 'a.conf'
    config.write_text(
        '[DEFAULT]\ntransport_url = inproc://\n'
        f'[database]\nconnection = sqlite:///{tmp_path}/a.db\n'
    )
    words = {'manage': ['host', 'list']}
    started = subprocess.Popen(
        [sys.executable, '-X', 'importtime',
         '-m', f'scheduler_service.cmd.{name}',
         '--config-file', str(config), *words.get(name, ())],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    # In the middle of its imports, however fast the machine is.
    while 'oslo_' not in started.stderr.readline():
        pass
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=LIMIT_S)
    assert 'Traceback' not in err
    # On a fast machine it may be done by then.
    assert started.returncode in (130, -signal.SIGINT, 0, 1)


def test_an_error_is_one_line():
    error = errors.Conflict('taken:\n  by another')
    assert program.error_line(error) == 'Conflict: taken: by another'


def test_an_error_cannot_move_the_cursor_of_a_terminal():
    error = errors.HostNotFound('There is no host \x1b]0;x\x07')
    assert program.error_line(error) == (
        'HostNotFound: There is no host \\x1b]0;x\\x07'
    )
    assert program.error_line(RuntimeError('\x1b[31m')).startswith(
        'RuntimeError: \\x1b[31m (this was not expected'
    )
    missing = FileNotFoundError(errno.ENOENT, 'said', 'a\x1b[1m')
    assert program.error_line(missing) == ('OSError: a\\x1b[1m: said')
    error = errors.InvalidInventory('two', problems=['a\x1b[1m', 'b'])
    assert program.error_details(error) == ['a\\x1b[1m', 'b']


def test_an_error_of_a_file_names_the_file_and_not_the_output():
    fault = OSError(errno.ENOSPC, 'No space left on device', '/a/file')
    assert program.error_line(fault) == (
        'OSError: /a/file: No space left on device'
    )


def test_what_nobody_expected_says_so():
    line = program.error_line(KeyError('a\nb'))
    assert line.startswith('KeyError: ')
    assert '--debug' in line
    assert '\n' not in line


def test_output_that_is_cut_fails_also_without_a_buffer(tmp_path, monkeypatch):
    monkeypatch.setenv('PYTHONUNBUFFERED', '1')
    # The file has room for 1 KiB, and the script for bash has more.
    done = subprocess.run(
        ['bash', '-c', 'ulimit -f 1; exec "$0" -m scheduler_service.cmd.manage'
         f' completion bash > {tmp_path}/cut', sys.executable],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith('OSError: ')
    assert 'File too large' in done.stderr


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path):
    path = tmp_path / 'a.yaml'
    program.write_file(path, b'first')
    program.write_file(path, b'second')
    assert path.read_bytes() == b'second'
    script = (
        'import pathlib, sys; from scheduler_service.cmd import program; '
        'program.write_file(pathlib.Path(sys.argv[1]), bytes(4096))'
    )
    done = subprocess.run(
        ['bash', '-c', 'ulimit -f 1; exec "$0" -c "$1" "$2"', sys.executable,
         script, str(path)],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert str(path) in done.stderr.splitlines()[-1]
    assert path.read_bytes() == b'second'
    assert [each.name for each in tmp_path.iterdir()] == ['a.yaml']
