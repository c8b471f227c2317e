"""Masks that are kept with a topology, in bounds."""

from typing import Any

import numpy as np
import pytest

from scheduler_service.columns.topology import least_number
from scheduler_service.model.limits import MAX_NUMBER
from scheduler_service.testing import table


class Masks:
    """Asks for masks by keys, and notes which had to be made."""

    def __init__(self) -> None:
        hosts = [{'host': 'a'}, {'host': 'b'}]
        self._topology = table({'hosts': hosts}).topology
        self.made: list[Any] = []

    def ask(self, key: Any, number: int = 0) -> None:
        def work() -> Any:
            self.made.append(number)
            return np.array([True, False])

        mask = self._topology.mask(key, work)
        assert mask is not None
        assert mask.tolist() == [True, False]


def test_masks_are_dropped_when_there_are_too_many():
    masks = Masks()
    for number in range(20_000):
        masks.ask(number, number)
    masks.ask(19_999, 19_999)
    assert masks.made == list(range(20_000))
    masks.ask(0, 0)
    assert masks.made[-1] == 0


def test_mask_is_none_when_it_passes_every_host():
    topology = table({'hosts': [{'host': 'a'}]}).topology
    assert topology.mask('key', lambda: np.array([True])) is None


def test_masks_are_dropped_when_their_keys_are_large():
    masks = Masks()

    def ask(number):
        masks.ask((number, 'z' * 16_000), number)

    # Of 6 bytes for each character, 697 keys have just below 64 MiB.
    for number in range(697):
        ask(number)
    ask(0)
    assert masks.made == list(range(697))
    for number in range(697, 703):
        ask(number)
    ask(0)
    assert masks.made == [*range(703), 0]


@pytest.mark.parametrize(
    ('values', 'expected'),
    [
        ((), 7.0),
        (('3', ' 2 '), 2.0),
        (('2', 'x'), 7.0),
        # NaN is no number, in whatever order the values come.
        (('nan', '2'), 7.0),
        (('2', 'nan'), 7.0),
        # What is too large to calculate with counts as the largest number.
        (('inf',), MAX_NUMBER),
        (('1e308',), MAX_NUMBER),
        (('-inf', '2'), -MAX_NUMBER),
    ],
)
def test_the_least_number_is_finite(values, expected):
    assert least_number(values, 7.0, float) == expected


def test_a_count_of_any_length_is_bounded():
    assert least_number(['9' * 400], 7, int) == MAX_NUMBER
    assert least_number(['9' * 5000], 7, int) == 7
