"""What is counted, and what happened in the last minute."""

import pytest

from scheduler_service.engine.measurements import Measurements
from tests.support.clocks import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def measured(clock):
    return Measurements(clock)


def value(measured, name, **labels):
    return measured.registry.get_sample_value(
        f'scheduler_service_{name}', labels
    )


def test_counters_are_those_that_something_was_counted_of(measured):
    measured.count('claims_lost', by=2)
    measured.count('claims_lost')
    measured.count('refusals', 'RamFilter', 'NoValidHost')
    measured.count('refusals', '', 'ServiceBusy')
    measured.count('extender_verb_errors', 'bind', by=0)
    assert measured.counters() == {
        'claims_lost': 3,
        'refusals': {'RamFilter NoValidHost': 1, ' ServiceBusy': 1},
        'extender_verb_errors': {'bind': 0},
    }


def test_what_is_not_declared_cannot_be_counted(measured):
    with pytest.raises(LookupError):
        measured.count('strangers')


def test_two_daemons_of_a_process_count_apart(measured):
    measured.count('claims_lost')
    assert Measurements().counters() == {}


def test_a_value_on_a_bound_belongs_to_the_bucket_it_ends(measured):
    for number in (1, 2, 3, 1000, 1001):
        measured.observe('batch_size', number)
    for bound, below in (('1.0', 1), ('2.0', 2), ('4.0', 3), ('512.0', 3),
                         ('1000.0', 4), ('+Inf', 5)):  # fmt: skip
        assert value(measured, 'batch_size_bucket', le=bound) == below
    assert value(measured, 'batch_size_sum') == 2007.0


def test_recent_is_what_was_added_within_a_minute(measured, clock):
    measured.count('requests', 'chosen', by=5)
    measured.time('claim', 40.0)
    clock.now += 30.0
    measured.sample()
    clock.now += 60.0
    measured.sample()
    measured.count('requests', 'chosen', by=2)
    measured.count('refusals', 'RamFilter', 'NoValidHost')
    for seconds in (*(0.003,) * 19, 100.0):
        measured.time('claim', seconds)
    measured.time('wait', 100.0)
    clock.now += 4.0
    assert measured.recent() == {
        'seconds': 64.0,
        'requests': {'chosen': 2},
        'refusals': {'RamFilter NoValidHost': 1},
        'stages': {
            'claim': {'count': 20, 'mean_ms': 5002.85, 'p95_ms': 5.0},
            'wait': {'count': 1, 'mean_ms': 100_000.0, 'p95_ms': 30_000.0},
        },
    }
