"""``/metrics`` for Prometheus, from the engine's own counts.

A thread of ``http.routes`` collects them; the counts have a lock.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import prometheus_client
from prometheus_client import core

from scheduler_service.http.message import HttpRequest, Reply
from scheduler_service.introspection import Introspection
from scheduler_service.scheduler import Scheduler

PREFIX = 'scheduler_service_'
# Prefix of the routes of verbs that a kube-scheduler calls.
VERB_ROUTE = '/extender/'
VERB_CALLS = 'extender_verb_calls'
VERB_ERRORS = 'extender_verb_errors'
VERB_NODES = 'extender_verb_nodes'
# Counter -> its labels; their values are the words of the engine's label.
_LABELS = {
    'requests': ('outcome',),
    'filter_rejections': ('filter',),
    'refusals': ('filter', 'cause'),
    'extender_calls': ('extender', 'verb', 'outcome'),
    'database_retries': ('reason',),
    'http_requests': ('route', 'status'),
    VERB_CALLS: ('verb',),
    VERB_NODES: ('verb', 'direction'),
    VERB_ERRORS: ('verb',),
    'call_heartbeats': ('outcome',),
    'answers_undone': ('outcome',),
    'compute_changes': ('method',),
    'kubernetes_events': ('kind',),
    'kubernetes_relists': ('kind',),
    'kubernetes_watch_errors': ('kind',),
    'pods_assumed': ('outcome',),
}
_HELP = {
    'requests': 'Requests with a reply, by outcome',
    'requests_expired': 'Requests dropped after the timeout of their caller',
    'requests_quarantined': 'Messages put into quarantine',
    'requests_redelivered': 'Messages that were delivered before',
    'requests_with_unknown_group': 'Requests placed without their group',
    'outcomes_repeated': 'Redelivered requests with their recorded outcome',
    'outcomes_expired': 'Redelivered requests whose outcome was deleted',
    'filter_rejections': 'Requests that failed, by filter that rejected hosts',
    'refusals': 'Requests that failed, by filter that left no host, and error',
    'extender_calls': 'Calls of extenders, by extender, verb and outcome',
    'http_requests': 'HTTP requests, by route and status',
    VERB_CALLS: 'Calls by a kube-scheduler, by verb',
    VERB_NODES: 'Nodes of calls by a kube-scheduler, by verb',
    VERB_ERRORS: 'Calls by a kube-scheduler that failed, by verb',
    'call_heartbeats': 'Heartbeats sent to waiting callers, by outcome',
    'answers_undone': 'Answers without a caller, by result of their undoing',
    'compute_changes': 'Casts of compute services, by method',
    'kubernetes_events': 'Changes of nodes and pods of a cluster',
    'kubernetes_relists': 'How often nodes or pods were listed anew',
    'kubernetes_watch_errors': 'Failed calls of an API server, by kind',
    'pods_assumed': 'Pods that were assumed on a node, by outcome',
    'claims_lost': 'Claims lost to another request on the same hosts',
    'database_lost': 'How often the database became unreachable',
    'database_retries': 'Transactions repeated, by reason',
    'database_timeouts': 'Transactions ended by a time limit',
    'database_history_changes': 'How often the database went back in time',
    'claims_expired': 'Claims released after claim_timeout',
    'moves_expired': 'Claims of moves released after claim_timeout',
    'heartbeats': 'Heartbeats received',
    'host_reports': 'Host reports received',
    'host_reports_rejected': 'Host reports that were refused',
    'aggregates_rejected': 'Messages with aggregates that were refused',
    'instance_reports_rejected': 'Reports of instances that were refused',
    'hosts_marked_up': 'Hosts marked up after they were down',
    'hosts_marked_down': 'Hosts marked down after missing heartbeats',
    'placement_claims': 'Claims completed in the placement service',
    'placement_claims_lost': 'Claims that the placement service refused',
    'placement_claims_undone': 'Released claims undone in placement',
    'placement_claims_forgotten': 'Claims without allocations, released',
    'placement_failures': 'Requests refused because placement failed',
}
_RESOURCES = (
    ('resource_capacity', 'Capacity: (total - reserved) x allocation ratio'),
    ('resource_used', 'Use by claims, and use that hosts report'),
    ('resource_free', 'Free capacity of hosts that are up and enabled'),
)
# Kind, label, name and help of durations.
_DURATIONS = (
    ('stage', 'stage', 'stage_duration_seconds', 'Duration of a stage'),
    ('http', 'route', 'http_request_duration_seconds',
     'Duration of HTTP requests, from their last byte to their reply'),
    ('verb', 'verb', 'extender_verb_duration_seconds',
     'Duration of calls by a kube-scheduler, by verb'),
)  # fmt: skip


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
        self._registry.register(self)
        # Processor time, memory, open files and start of the process.
        prometheus_client.ProcessCollector(registry=self._registry)

    def serve(self, request: HttpRequest, content: bytes) -> Reply:
        text = prometheus_client.generate_latest(self._registry)
        return Reply(200, text, prometheus_client.CONTENT_TYPE_LATEST)

    def collect(self) -> Iterator[Any]:
        """Yield all families, as a collector of the library."""
        status = self._scheduler.status()
        yield from _gauges(status)
        yield from _counters(_with_verb_calls(status['counters']))
        yield from _histograms(self._scheduler.health.distributions())
        yield from _measured(self._scheduler.introspection)
        values = {tuple(self._versions.values()): 1}
        yield _gauge('build_info', 'Versions', values, tuple(self._versions))
        number, closed = self._connections()
        yield _gauge('http_connections', 'Open HTTP connections', number)
        yield _counter(
            'http_connections_closed',
            'HTTP connections closed by the server, by reason',
            ('reason',),
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
        ('cache',),
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
    ):  # fmt: skip
        yield _gauge(name, text, value)
    for name, text, key in (
        ('batches', 'Batches that were decided', 'batches'),
        ('batched_requests', 'Requests in decided batches', 'requests'),
    ):
        yield _counter(name, text, (), status[key])


def _gauge(
    name: str, text: str, values: Any, labels: tuple[str, ...] = ()
) -> Any:
    """Return a gauge; *values* is its value, or has one by labels."""
    if not labels:
        return core.GaugeMetricFamily(PREFIX + name, text, value=values)
    family = core.GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _counters(counters: Mapping[str, Any]) -> Iterator[Any]:
    # Counters without labels exist from the start: an increase that comes
    # with the counter itself would not be seen.
    for name in _HELP.keys() - _LABELS.keys() - counters.keys():
        yield _counter(name, _HELP[name], (), 0)
    for name, counts in counters.items():
        text = _HELP.get(name, name.replace('_', ' '))
        yield _counter(name, text, _LABELS.get(name, ('label',)), counts)


def _counter(
    name: str, text: str, labels: tuple[str, ...], counts: Any
) -> Any:
    if not isinstance(counts, Mapping):
        return core.CounterMetricFamily(PREFIX + name, text, counts)
    family = core.CounterMetricFamily(PREFIX + name, text, labels=labels)
    for value, count in counts.items():
        family.add_metric(value.rsplit(' ', len(labels) - 1), count)
    return family


def _with_verb_calls(counters: Mapping[str, Any]) -> dict[str, Any]:
    """Add the number of calls of each verb.

    A reply with another status than 200 is an error, as is a reply with a
    text in ``Error``.
    """
    calls: Counter[str] = Counter()
    failed: Counter[str] = Counter(counters.get(VERB_ERRORS, {}))
    for label, count in counters.get('http_requests', {}).items():
        route, _, status = label.rpartition(' ')
        if route.startswith(VERB_ROUTE):
            verb = route.removeprefix(VERB_ROUTE)
            calls[verb] += count
            failed[verb] += count if status != '200' else 0
    if not calls:
        return dict(counters)
    return {**counters, VERB_CALLS: calls, VERB_ERRORS: failed}


def _histograms(
    distributions: Mapping[tuple[str, str], Any],
) -> Iterator[Any]:
    families = {
        kind: core.HistogramMetricFamily(PREFIX + name, text, labels=[label])
        for kind, label, name, text in _DURATIONS
    }
    for (kind, label), (bounds, counts, total) in sorted(
        distributions.items()
    ):
        edges = [*map(str, bounds), '+Inf']
        # Those of Prometheus are cumulative.
        buckets = list(zip(edges, itertools.accumulate(counts), strict=True))
        if kind not in families:
            yield core.HistogramMetricFamily(
                f'{PREFIX}{label}_size',
                f'Requests in a {label}',
                buckets=buckets,
                sum_value=total,
            )
            continue
        families[kind].add_metric([label], buckets, total)
        if label.startswith(VERB_ROUTE):
            verb = label.removeprefix(VERB_ROUTE)
            families['verb'].add_metric([verb], buckets, total)
    yield from families.values()
