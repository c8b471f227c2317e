"""What the daemon says about its configuration when it starts."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture
def start(tmp_path):
    """Give a function that starts a daemon which cannot serve."""
    path = tmp_path / 'a.conf'

    def run(text):
        # It ends: there is no such driver of databases.
        path.write_text(f'{text}\n[database]\nconnection = nonsense://\n')
        return subprocess.run(
            [sys.executable, '-m', 'scheduler_service.cmd.service',
             '--config-file', str(path)],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    return run


def test_names_that_do_not_exist_are_warned_about(start):
    done = start('[scheduler]\ntopik = a\n[schedular]\ntopic = a')
    assert done.returncode == 1
    # The log goes to standard output where no file is configured.
    for text in (
        '[scheduler] topik: there is no such option; is topic meant?',
        '[schedular] topic: there is no group schedular; is scheduler meant?',
    ):
        assert text in done.stdout
    assert 'Traceback' not in done.stderr


def test_a_log_that_cannot_be_written_ends_the_start(start):
    done = start('[DEFAULT]\nlog_file = /no/such/folder/a.log')
    assert done.returncode == 1
    assert done.stderr == (
        'scheduler-service: OSError: /no/such/folder/a.log: there is no such '
        'file or folder (No such file or directory)\n'
    )
