"""MetricsWeigher weighs hosts by configured metrics."""

import pytest

from scheduler_service import errors
from scheduler_service.weighers.metrics_weigher import MetricsWeigher
from tests.support.plugins import inventory, raw_weights

HOSTS = inventory(
    a={
        'metrics': [
            {'name': 'load', 'value': 3},
            {'name': 'heat', 'value': 10},
        ]
    },
    b={'metrics': [{'name': 'load', 'value': 1}]},
)


def weights(*setting, required=False, multiplier=1.0):
    return raw_weights(
        MetricsWeigher(),
        HOSTS,
        metrics_weight_setting=setting,
        metrics_required=required,
        metrics_weight_multiplier=multiplier,
    )


def test_the_weight_is_the_sum_of_values_times_ratios():
    assert weights('load=-2') == {'a': -6, 'b': -2}
    assert weights('load=1', 'heat=0.5')['a'] == 8


def test_a_missing_metric_that_is_required_fails_the_request():
    with pytest.raises(errors.ComputeHostMetricNotFound) as caught:
        weights('load=1', 'heat=1', required=True)
    assert caught.value.facts == {'host': 'b', 'node': 'b', 'metric': 'heat'}
    assert str(caught.value) == 'Host b (b) does not report the metric heat'


def test_a_missing_metric_replaces_the_whole_weight_of_the_host():
    assert weights('load=1', 'heat=1') == {'a': 13, 'b': -10000}


def test_a_missing_metric_without_effect_is_left_out():
    assert weights('load=1', 'heat=0') == {'a': 3, 'b': 1}
    assert weights('heat=1', multiplier=0.0)['b'] == 0


@pytest.mark.parametrize('setting', [(), ('load',), ('=1',), ('load=x',)])
def test_it_has_no_opinion_without_a_valid_setting(setting):
    assert weights(*setting) is None
