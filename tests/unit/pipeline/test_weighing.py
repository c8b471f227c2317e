"""Normalising, multipliers and ties."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_service.model import documents
from scheduler_service.pipeline.weighing import Weighing, best_of
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from scheduler_service.weighers.load_weigher import RAMWeigher


def totals(memory, aggregates=(), used=0, **settings):
    hosts = table(
        {
            'hosts': [
                {'host': f'h{n}', 'memory_mb': mb, 'memory_mb_used': used}
                for n, mb in enumerate(memory)
            ],
            'aggregates': list(aggregates),
        }
    )
    request = documents.request({}).with_ids()
    weighing = Weighing([RAMWeigher()], Settings(**settings))
    mask = np.ones(len(hosts), np.bool_)
    terms = weighing.terms(hosts, request)
    ranking = weighing.rank(hosts, mask, request, terms)
    return ranking.totals.tolist()


@pytest.mark.parametrize(
    ('memory', 'expected'),
    [
        ([512, 1024, 2048], [0.25, 0.5, 1.0]),
        ([512, 512], [1.0, 1.0]),
        ([0, 0], [0.0, 0.0]),
        ([512], [0.0]),
    ],
)
def test_normalised_from_zero(memory, expected):
    assert totals(memory) == expected


def test_negative_raw_weights_count_as_zero():
    assert totals([512, 100], used=100) == [1.0, 0.0]


@pytest.mark.parametrize(
    ('values', 'expected'),
    [(['10', '3'], 3.0), (['x'], 2.0), (['10', 'x'], 2.0), ([], 2.0)],
)
def test_multiplier_by_aggregate_is_the_least_or_the_option(values, expected):
    aggregates = [
        {'id': n + 1, 'hosts': ['h0'],
         'metadata': {'ram_weight_multiplier': value}}
        for n, value in enumerate(values)
    ]  # fmt: skip
    found = totals([512, 512], aggregates, ram_weight_multiplier=2.0)
    assert found == [expected, 2.0]


def test_best_keeps_the_order_of_rows_among_equals():
    hosts = table({'hosts': [{'host': f'h{n}'} for n in range(40)]})
    request = documents.request({}).with_ids()
    mask = np.ones(40, np.bool_)
    ranking = Weighing([], Settings()).rank(hosts, mask, request, [])
    assert ranking.best(3) == [0, 1, 2]
    assert ranking.best(40) == list(range(40))


@pytest.mark.parametrize('count', [1, 5, 16, 17, 30, 60])
def test_the_best_are_the_largest_and_among_equals_the_first(count):
    weights = np.random.default_rng(count).integers(0, 9, 60) / 8
    expected = sorted(range(60), key=lambda at: (-weights[at], at))
    assert best_of(weights, count) == expected[:count]
