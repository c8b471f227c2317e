"""Programs whose standard streams are closed, full, or not read to the end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

PROGRAMS = {'manage': 1, 'status': 255, 'service': 1}


def run(program: str, line: str) -> subprocess.CompletedProcess[str]:
    """Run a program as a shell does."""
    return subprocess.run(
        f'{sys.executable} -m scheduler_service.cmd.{program} {line}',
        shell=True, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize('program', PROGRAMS)
def test_a_full_disk_is_named_whatever_is_printed(program):
    words = 'completion' if program == 'manage' else '--shell_completion'
    done = run(program, f'{words} bash >/dev/full')
    assert done.returncode == PROGRAMS[program]
    assert done.stderr == (
        'OSError: standard output: the disk is full '
        '(No space left on device)\n'
    )


@pytest.mark.parametrize('program', PROGRAMS)
def test_a_program_runs_where_its_streams_are_closed(program):
    done = run(program, '--version <&- >&- 2>&-')
    assert (done.returncode, done.stdout, done.stderr) == (0, '', '')


def test_an_error_does_not_go_to_standard_output(tmp_path):
    done = run('manage', f'--config-file {tmp_path}/none db check 2>&-')
    assert (done.returncode, done.stdout) == (1, '')
    done = run('service', f'--config-file {tmp_path}/none 2>&-')
    assert (done.returncode, done.stdout) == (1, '')


def test_checks_say_in_a_line_that_a_file_cannot_be_read(tmp_path):
    done = run('status', f'--config-file {tmp_path} upgrade check')
    assert done.returncode == 255
    assert done.stderr.splitlines()[-1] == (
        f'OSError: {tmp_path}: that is a folder (Is a directory)'
    )
    assert 'Traceback' not in done.stderr


@pytest.mark.parametrize('program', ['manage', 'status', 'service'])
def test_an_interrupted_program_says_nothing(program, tmp_path):
    config = tmp_path / 'a.conf'
    config.write_text(
        '[DEFAULT]\ntransport_url = inproc://\n'
        f'[database]\nconnection = sqlite:///{tmp_path}/a.db\n'
    )
    words = {'manage': ['host', 'list'], 'status': ['upgrade', 'check']}
    started = subprocess.Popen(
        [sys.executable, '-m', f'scheduler_service.cmd.{program}',
         '--config-file', str(config), *words.get(program, ())],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    # In the middle of its imports, however fast the machine is.
    time.sleep(0.25)
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=60)
    assert 'Traceback' not in err
    # On a fast machine it may be done by then.
    assert started.returncode in (130, 0, 1)
