"""The log of changes: what it keeps, and what it says when it does not."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from scheduler_service.columns import changes


@pytest.fixture
def log():
    with mock.patch.object(changes, '_KEPT', 8):
        yield changes.ChangeLog()


def test_changes_are_returned_in_order_from_a_position(log):
    log.add(3)
    log.add(np.array([1, 3]))
    assert log.end == 3
    assert log.since(0).tolist() == [3, 1, 3]
    assert log.since(2).tolist() == [3]
    assert log.since(3).tolist() == []


def test_the_older_half_goes_when_the_log_is_full(log):
    for row in range(9):
        log.add(row)
    assert log.since(3) is None
    assert log.since(4).tolist() == [4, 5, 6, 7, 8]
    log.add(np.array([9, 10, 11, 12]))
    assert log.end == 13
    assert log.since(9).tolist() == [9, 10, 11, 12]


def test_nothing_is_kept_of_more_changes_than_fit(log):
    log.add(1)
    log.add(np.arange(5))
    assert log.end == 6
    assert log.since(5) is None
    assert log.since(6).tolist() == []
    log.add(7)
    assert log.since(6).tolist() == [7]
