"""The report of a test that fails says why, and how to repeat it."""

import functools
import os
import re
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tests.support.waiting import LIMIT_S

FAILING = """
import random

import pytest
from hypothesis import given, strategies

from tests.support import waiting

def test_chooses():
    assert not f'number {random.random()}'

@given(strategies.integers(0, 10**9))
def test_draws(number):
    assert not f'number {number}'

@pytest.fixture(scope='module')
def daemon(tmp_path_factory):
    from tests.support import processes
    from tests.support.databases import ready_database
    folder = tmp_path_factory.mktemp('daemon')
    config = folder / 'a.conf'
    url = ready_database(f'sqlite:///{folder}/')
    text = '[DEFAULT]\\ntransport_url = inproc://\\n'
    config.write_text(f'{text}[database]\\nconnection = {url}')
    made = processes.launch(config)
    yield made
    made.remove()

def test_waits(daemon):
    daemon.wait_for('Ready')
    waiting.LIMIT_S = 0.1
    waiting.wait_until(lambda: False)
"""

TESTS = 'test_chooses', 'test_draws', 'test_waits'


@pytest.fixture(scope='module')
def report(tmp_path_factory: pytest.TempPathFactory):
    """Give a function that runs tests that fail; it returns what is said."""
    path = tmp_path_factory.mktemp('failing') / 'test_failing.py'
    path.write_text(FAILING)

    @functools.cache
    def run(*tests: str) -> str:
        done = subprocess.run(
            [sys.executable, '-m', 'pytest', '-c', 'pyproject.toml',
             '-p', 'tests.conftest', '-p', 'no:cacheprovider',
             *[f'{path}::{test}' for test in tests]],
            cwd=ROOT, env={**os.environ, 'SCHEDULER_TEST_SEED': '17'},
            capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stdout

    return run


def test_a_seed_makes_the_same_choices_again(report):
    first, again = report(*TESTS), report(*TESTS[:2])
    assert 'seed: 17 ' in first
    for test in TESTS:
        assert re.search(
            rf'SCHEDULER_TEST_SEED=17 \S+ -m pytest .*{test}\n', first
        )
    chosen = set(re.findall(r'number [0-9.]+', first))
    assert len(chosen) >= 2
    assert chosen == set(re.findall(r'number [0-9.]+', again))


def test_a_wait_in_vain_shows_what_all_threads_do(report):
    printed = report(*TESTS)
    assert 'NotInTime: not within 0 s: False' in printed
    assert re.search(r'-- Last lines of daemon \d+ --', printed)
    assert 'Ready: 4 hosts' in printed
    # Of this process, and of the daemon's.
    assert re.search(r'-- Threads --+\n.*_follow', printed)
    assert re.search(r'-- Threads of daemon \d+ --', printed)
    assert 'decision-recorder' in printed
