"""Masks that are kept with a topology, in bounds."""

from __future__ import annotations

import numpy as np

from scheduler_service.testing import table


def test_masks_are_dropped_when_there_are_too_many():
    topology = table({'hosts': [{'host': 'a'}, {'host': 'b'}]}).topology
    made = []

    def mask(number):
        def work():
            made.append(number)
            return np.array([True, False])

        return topology.mask(number, work)

    for number in range(20_000):
        mask(number)
    mask(19_999)
    assert made == list(range(20_000))
    mask(0)
    assert made[-1] == 0


def test_mask_is_none_when_it_passes_every_host():
    topology = table({'hosts': [{'host': 'a'}]}).topology
    assert topology.mask('key', lambda: np.array([True])) is None


def test_masks_are_dropped_when_their_keys_are_large():
    topology = table({'hosts': [{'host': 'a'}, {'host': 'b'}]}).topology
    made = []

    def mask(number):
        def work():
            made.append(number)
            return np.array([True, False])

        return topology.mask((number, 'z' * 16_000), work)

    # Of 6 bytes for each character, 697 keys have just below 64 MiB.
    for number in range(697):
        mask(number)
    mask(0)
    assert made == list(range(697))
    for number in range(697, 703):
        mask(number)
    mask(0)
    assert made == [*range(703), 0]


def test_mask_is_not_kept_when_its_key_is_very_large():
    topology = table({'hosts': [{'host': 'a'}, {'host': 'b'}]}).topology
    made = []

    def work():
        made.append(1)
        return np.array([True, False])

    for _ in range(3):
        mask = topology.mask(frozenset(range(5000)), work)
        assert mask is not None
        assert mask.tolist() == [True, False]
    assert made == [1, 1, 1]
