"""``/metrics`` for Prometheus: what is counted, and what is measured now.

A thread of ``http.routes`` calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import prometheus_client
from prometheus_client import core

from scheduler_service.http.message import HttpRequest, Reply
from scheduler_service.introspection import Introspection
from scheduler_service.scheduler import Scheduler

PREFIX = 'scheduler_service_'
_RESOURCES = (
    ('resource_capacity', 'Capacity: (total - reserved) x allocation ratio'),
    ('resource_used', 'Use by claims, and use that hosts report'),
    ('resource_free', 'Free capacity of hosts that are up and enabled'),
)


class Metrics:
    """``/metrics``: all families in the text format.

    :param connections: returns how many connections the HTTP server has open,
        and how many it has closed, by reason
    """

    def __init__(
        self,
        scheduler: Scheduler,
        connections: Callable[[], tuple[int, Mapping[str, int]]],
    ) -> None:
        self._scheduler = scheduler
        self._connections = connections
        self._versions = scheduler.introspection.versions()
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(scheduler.health.registry)
        self._registry.register(self)
        # Processor time, memory, open files and start of the process.
        prometheus_client.ProcessCollector(registry=self._registry)

    def serve(self, request: HttpRequest, content: bytes) -> Reply:
        text = prometheus_client.generate_latest(self._registry)
        return Reply(200, text, prometheus_client.CONTENT_TYPE_LATEST)

    def collect(self) -> Iterator[Any]:
        """Yield what is measured now, as a collector of the library."""
        yield from _gauges(self._scheduler.status())
        yield from _measured(self._scheduler.introspection)
        values = {tuple(self._versions.values()): 1}
        yield _gauge('build_info', 'Versions', values, tuple(self._versions))
        number, closed = self._connections()
        yield _gauge('http_connections', 'Open HTTP connections', number)
        yield _counter(
            'http_connections_closed',
            'HTTP connections closed by the server, by reason',
            'reason',
            closed,
        )


def _measured(introspection: Introspection) -> Iterator[Any]:
    usage = introspection.usage()
    labels = ('zone', 'resource_class')
    for place, (name, text) in enumerate(_RESOURCES, 2):
        values = {row[:2]: row[place] for row in usage}
        yield _gauge(name, text, values, labels)
    yield _gauge(
        'claims',
        'Claims, by state and age: up to that, and older than the one before',
        introspection.claims(),
        ('state', 'age'),
    )
    yield _counter(
        'rankings',
        'Rankings of hosts, by whether what was kept was enough',
        'cache',
        introspection.rankings(),
    )
    for name, is_there in introspection.connected().items():
        text = f'Whether the {name} can be reached'
        yield _gauge(f'{name}_up', text, int(is_there))


def _gauges(status: Mapping[str, Any]) -> Iterator[Any]:
    for name, text, value in (
        ('hosts', 'Hosts', status['hosts']),
        ('hosts_up', 'Hosts that are up', status['hosts_up']),
        ('hosts_down', 'Hosts that are down',
         status['hosts'] - status['hosts_up']),
        ('pools', 'DNS pools', status['pools']),
        ('requests_waiting', 'Requests in the request queue',
         status['waiting']),
        ('snapshot_revision', 'Revision of the snapshot',
         status['revision']),
        ('snapshot_age_seconds',
         'Age of the snapshot', status['snapshot_age'] or 0.0),
        ('degradations', 'Present causes of degradation',
         len(status['degraded'])),
        ('daemons_differing', 'Daemons that are configured differently',
         status['daemons_differing']),
        ('daemons_elsewhere', 'Daemons on the topic with another database',
         status['daemons_elsewhere']),
        ('shadow', 'Whether requests are copies, decided as trials',
         int(status['shadow'])),
        ('reload_refused', 'Whether the last reload was refused',
         int(status['reload_refused'])),
    ):  # fmt: skip
        yield _gauge(name, text, value)
    for name, text, key in (
        ('batches', 'Batches that were decided', 'batches'),
        ('batched_requests', 'Requests in decided batches', 'requests'),
    ):
        yield core.CounterMetricFamily(PREFIX + name, text, status[key])


def _gauge(
    name: str, text: str, values: Any, labels: tuple[str, ...] = ()
) -> Any:
    """Return a gauge; *values* is its value, or has one by labels."""
    family = core.GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for key, value in values.items() if labels else [((), values)]:
        family.add_metric(key, value)
    return family


def _counter(name: str, text: str, label: str, counts: Any) -> Any:
    """Return a counter that is kept elsewhere, by the values of a label."""
    family = core.CounterMetricFamily(PREFIX + name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
