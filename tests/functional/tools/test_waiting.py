"""The one limit of all waits follows the machine."""

import os
import subprocess
import sys

import pytest

from tests.support import waiting
from tests.support.paths import ROOT
from tests.support.waiting import LIMIT_S, NotInTime, wait_until

PRINT = (
    'from tests.support.waiting import LIMIT_S, SLOWNESS\n'
    'print(SLOWNESS, LIMIT_S)'
)


def measured(**env: str) -> list[float]:
    """Return the slowness and the limit in a process of its own."""
    done = subprocess.run(
        [sys.executable, '-c', PRINT],
        cwd=ROOT, env={'PATH': os.environ['PATH'], **env}, check=True,
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    return [float(word) for word in done.stdout.split()]


def test_a_machine_is_measured_once_and_slow_by_four_times_at_most():
    slowness, limit_s = measured()
    assert 1 <= slowness <= 4
    assert limit_s == pytest.approx(150 * slowness)
    assert measured(SCHEDULER_TEST_SLOWNESS='2.5') == [2.5, 375]


def test_what_has_come_is_returned_though_the_limit_is_over(monkeypatch):
    monkeypatch.setattr(waiting, 'LIMIT_S', 0.0)
    assert wait_until(lambda: 'here') == 'here'
    with pytest.raises(NotInTime, match=r'not within 0 s: \[\]'):
        wait_until(list)
