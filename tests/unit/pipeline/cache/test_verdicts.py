"""Which filter rejects each host, kept under the identity of its mask."""

from __future__ import annotations

import weakref
from unittest import mock

import numpy as np

from scheduler_service.filters.base import HostFilter
from scheduler_service.pipeline.cache import verdicts
from scheduler_service.pipeline.filtering import MASK
from scheduler_service.testing import table

HOSTS = table({'hosts': [{'host': name} for name in 'abc']})


def steps(mask):
    return [(HostFilter(), MASK, mask, False)]


def test_hosts_are_counted_by_the_step_that_rejects_them():
    mask = np.array([True, False, True])
    found = verdicts.VerdictCache().get(HOSTS, steps(mask))
    assert found.first.tolist() == [1, 0, 1]
    assert found.counts == [1, 2]


def test_a_mask_stays_as_long_as_what_is_kept_under_its_identity():
    """Else another mask could get its identity, and its verdicts."""
    cache = verdicts.VerdictCache()
    mask = np.array([True, False, True])
    there = weakref.ref(mask)
    kept = cache.get(HOSTS, steps(mask))
    del mask
    with mock.patch.object(verdicts, '_MOST_KEPT', 1):
        verdicts._make_room(cache._by_masks, len(HOSTS))
    assert there() is not None
    assert cache.get(HOSTS, steps(there())) is kept
