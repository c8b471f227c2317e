"""MetricsFilter passes hosts that report all configured metrics."""

import pytest

from scheduler_service.filters.hosts.metrics_filter import MetricsFilter
from tests.support.plugins import has_opinion, inventory, passing, reason

HOSTS = inventory(
    a={'metrics': [{'name': 'load', 'value': 1}, {'name': 'heat'}]},
    b={'metrics': [{'name': 'load', 'value': 0}]},
    c={'metrics': None},
)


@pytest.mark.parametrize(
    ('setting', 'expected'),
    [
        (('load=1.0',), ['a', 'b']),
        (('load=1.0', 'heat=-1'), ['a']),
        # A ratio of 0 does not make a metric optional.
        (('heat=0',), ['a']),
        (('unknown=1.0',), []),
        # Names are not stripped.
        ((' load=1.0',), []),
    ],
)
def test_hosts_that_report_every_metric_pass(setting, expected):
    hosts = passing(MetricsFilter(), HOSTS, metrics_weight_setting=setting)
    assert hosts == expected


@pytest.mark.parametrize('setting', [(), ('load',), ('=1.0',), ('load=much',)])
def test_it_has_no_opinion_without_a_valid_setting(setting):
    assert not has_opinion(
        MetricsFilter(), HOSTS, metrics_weight_setting=setting
    )


def test_the_reason_names_the_missing_metrics():
    sentence = reason(
        MetricsFilter(),
        HOSTS,
        host='c',
        metrics_weight_setting=('load=1', 'heat=1'),
    )
    assert sentence == 'the host does not report the metrics load, heat'
