"""The metrics that are measured at the moment when somebody reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import core

from scheduler_service.engine.gauges import Gauges

PREFIX = 'scheduler_service_'
_RESOURCES = (
    ('resource_capacity', 'Capacity: (total - reserved) x allocation ratio'),
    ('resource_used', 'What claims hold, and hosts reported'),
    ('resource_free', 'Free capacity of hosts that are up and enabled'),
)


class GaugeCollector:
    """Makes metric families of the state of a daemon."""

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges
        self._versions = gauges.versions()

    def collect(self) -> Iterator[Any]:
        """Yield every family."""
        yield from self._resources()
        yield from self._counts()
        info = core.GaugeMetricFamily(
            f'{PREFIX}build_info', 'Versions', labels=list(self._versions)
        )
        info.add_metric(list(self._versions.values()), 1)
        yield info
        for name, is_there in self._gauges.connected().items():
            yield core.GaugeMetricFamily(
                f'{PREFIX}{name}_up',
                f'Whether the {name} can be reached',
                value=int(is_there),
            )

    def _resources(self) -> Iterator[Any]:
        families = [
            core.GaugeMetricFamily(
                f'{PREFIX}{name}', text, labels=['zone', 'resource_class']
            )
            for name, text in _RESOURCES
        ]
        for zone, name, *sums in self._gauges.usage():
            for family, value in zip(families, sums, strict=True):
                family.add_metric([zone, name], value)
        yield from families

    def _counts(self) -> Iterator[Any]:
        claims = core.GaugeMetricFamily(
            f'{PREFIX}claims',
            'Claims, by state and age: up to that, and older than the one '
            'before',
            labels=['state', 'age'],
        )
        for (state, age), number in self._gauges.claims().items():
            claims.add_metric([state, age], number)
        yield claims
        batches, requests = self._gauges.batches()
        for name, text, number in (
            ('batches', 'Batches that were decided', batches),
            ('batched_requests', 'Requests in them', requests),
        ):
            yield core.CounterMetricFamily(f'{PREFIX}{name}', text, number)
        rankings = core.CounterMetricFamily(
            f'{PREFIX}rankings',
            'Rankings of hosts, by whether what was kept was enough',
            labels=['cache'],
        )
        for outcome, number in self._gauges.rankings().items():
            rankings.add_metric([outcome], number)
        yield rankings
