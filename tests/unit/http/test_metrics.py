"""Names and labels of what /metrics reports."""

import pytest

from scheduler_service.engine.health import Health
from scheduler_service.http import metrics


class Introspection:
    """What a scheduler measures, where there is nothing to measure."""

    def usage(self):
        return []

    def versions(self):
        return {'version': '1'}

    claims = rankings = connected = dict


class Engine:
    """The state that a scheduler reports, without a scheduler."""

    introspection = Introspection()

    def __init__(self, health: Health) -> None:
        self.health = health

    def status(self):
        return {
            'hosts': 5,
            'hosts_up': 4,
            'pools': 2,
            'waiting': 1,
            'batches': 3,
            'requests': 9,
            'revision': 7,
            'snapshot_age': None,
            'degraded': ['broker unreachable'],
            'daemons_differing': 2,
            'daemons_elsewhere': 3,
            'reload_refused': True,
            'shadow': True,
        }


@pytest.fixture
def report():
    """Give a function that returns the value of each sample by its name."""

    def sampled(health: Health) -> dict[str, float]:
        measured = metrics.Metrics(Engine(health), lambda: (0, {}))
        lines = measured.serve(None, b'').body.decode()
        return {
            line.rpartition(' ')[0]: float(line.rpartition(' ')[2])
            for line in lines.splitlines()
            if not line.startswith('#')
        }

    return sampled


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('scheduler_service_hosts', 5),
        ('scheduler_service_hosts_down', 1),
        ('scheduler_service_requests_waiting', 1),
        ('scheduler_service_snapshot_revision', 7),
        ('scheduler_service_snapshot_age_seconds', 0),
        ('scheduler_service_degradations', 1),
        ('scheduler_service_daemons_differing', 2),
        ('scheduler_service_daemons_elsewhere', 3),
        ('scheduler_service_reload_refused', 1),
        ('scheduler_service_shadow', 1),
    ],
)
def test_gauges_have_the_state_of_the_engine(report, name, value):
    assert report(Health())[name] == value


def test_an_extender_call_has_three_labels(report):
    health = Health()
    health.count('extender_calls', 'http://a/b', 'filter', 'answered')
    samples = report(health)
    assert (
        samples[
            'scheduler_service_extender_calls_total'
            '{extender="http://a/b",outcome="answered",verb="filter"}'
        ]
        == 1
    )


def test_a_counter_without_labels_has_none(report):
    health = Health()
    health.count('claims_lost', by=3)
    samples = report(health)
    assert samples['scheduler_service_claims_lost_total'] == 3


def test_buckets_are_cumulative(report):
    health = Health()
    for seconds in (0.003, 0.004, 100.0):
        health.time('claim', seconds)
    health.observe('batch_size', 64)
    samples = report(health)
    family = 'scheduler_service_stage_duration_seconds'
    labels = 'le="0.005",stage="claim"'
    assert samples[f'{family}_bucket{{{labels}}}'] == 2
    assert samples[f'{family}_count{{stage="claim"}}'] == 3
    assert samples['scheduler_service_batch_size_bucket{le="64.0"}'] == 1
    assert samples['scheduler_service_batch_size_bucket{le="32.0"}'] == 0


def test_nothing_but_what_is_counted_has_a_series(report):
    """No moments of creation, and no numbers of other daemons."""
    assert not [name for name in report(Health()) if '_created' in name]


def test_calls_of_a_verb_are_those_of_its_route(report):
    health = Health()
    health.count('extender_verb_errors', 'filter')
    for status in (200, 200, 503):
        health.served('/extender/filter', status, 0.003)
    health.served('/readyz', 503, 0.003)
    samples = report(health)
    prefix = 'scheduler_service_extender_verb_'
    assert samples[f'{prefix}calls_total{{verb="filter"}}'] == 3
    assert samples[f'{prefix}errors_total{{verb="filter"}}'] == 2
    assert samples[f'{prefix}duration_seconds_count{{verb="filter"}}'] == 3
    assert not any('readyz' in name for name in samples if prefix in name)
