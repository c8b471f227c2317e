"""``/metrics`` for Prometheus, made of the engine's own counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import prometheus_client
from prometheus_client import core

from scheduler_service.engine.scheduler import Scheduler

_LABELS = {
    'requests': 'outcome',
    'filter_rejections': 'filter',
    'extender_calls': 'call',
}
_HELP = {
    'requests': 'Requests answered, by outcome',
    'filter_rejections': 'Refused requests, by filter that kept hosts out',
    'extender_calls': 'Calls to extenders, by extender, verb and outcome',
    'claims_lost': 'Claims that another request was faster with',
}


class _Collector:
    """Turns what the engine counts into metric families."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def collect(self) -> Iterator[Any]:
        """Give every family."""
        status = self._scheduler.status()
        for name, text in (
            ('hosts', 'Hosts known'), ('hosts_up', 'Hosts that are up'),
            ('pools', 'Pools known'), ('waiting', 'Requests that wait'),
            ('revision', 'Revision of the snapshot'),
        ):  # fmt: skip
            yield core.GaugeMetricFamily(
                f'scheduler_{name}', text, value=status[name]
            )
        yield core.GaugeMetricFamily(
            'scheduler_hosts_down', 'Hosts that are down',
            value=status['hosts'] - status['hosts_up'],
        )  # fmt: skip
        yield core.GaugeMetricFamily(
            'scheduler_snapshot_age_seconds', 'Age of the snapshot',
            value=status['snapshot_age'] or 0.0,
        )  # fmt: skip
        # scheduler_sufferings is the name before the rename, kept for one
        # release.
        for name in ('scheduler_degraded', 'scheduler_sufferings'):
            yield core.GaugeMetricFamily(
                name, 'Things that are wrong', value=len(status['degraded'])
            )
        for name, found in status['counters'].items():
            yield _counter(name, found)
        yield from self._histograms()

    def _histograms(self) -> Iterator[Any]:
        families = {
            'stage': core.HistogramMetricFamily(
                'scheduler_stage_seconds', 'Time by stage', labels=['stage']
            ),
            'size': core.HistogramMetricFamily(
                'scheduler_size', 'Sizes, of batches and so on',
                labels=['what'],
            ),
        }  # fmt: skip
        found = self._scheduler.health.distributions()
        for (kind, label), (bounds, counts, total) in sorted(found.items()):
            sofar, buckets = 0, []
            for bound, count in zip([*bounds, None], counts, strict=True):
                sofar += count
                edge = '+Inf' if bound is None else str(bound)
                buckets.append((edge, float(sofar)))
            families[kind].add_metric([label], buckets, total)
        yield from families.values()


def _counter(name: str, found: Any) -> Any:
    text = _HELP.get(name, name.replace('_', ' '))
    if not isinstance(found, dict):
        return core.CounterMetricFamily(f'scheduler_{name}', text, found)
    label = _LABELS.get(name, 'what')
    family = core.CounterMetricFamily(
        f'scheduler_{name}', text, labels=[label]
    )
    for value, count in found.items():
        family.add_metric([value], count)
    return family


class Metrics:
    """The resource."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(_Collector(scheduler))

    def on_get(self, req: Any, resp: Any) -> None:
        """Write all of it."""
        resp.content_type = prometheus_client.CONTENT_TYPE_LATEST
        resp.data = prometheus_client.generate_latest(self._registry)
