"""``/metrics`` for Prometheus, from the engine's own counts.

A thread of ``http.routes`` collects them; the counts have a lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
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


class _Collector:
    def __init__(
        self,
        scheduler: Scheduler,
        more: Callable[[], Iterable[Any]] = tuple,
    ) -> None:
        self._scheduler = scheduler
        self._more = more

    def collect(self) -> Iterator[Any]:
        status = self._scheduler.status()
        yield from _gauges(status)
        yield from _counters(_with_verb_calls(status['counters']))
        yield from _histograms(self._scheduler.health.distributions())
        yield from self._more()


class _MeasuredCollector:
    def __init__(self, introspection: Introspection) -> None:
        self._introspection = introspection
        self._versions = introspection.versions()

    def collect(self) -> Iterator[Any]:
        families = [
            core.GaugeMetricFamily(
                f'{PREFIX}{name}', text, labels=['zone', 'resource_class']
            )
            for name, text in _RESOURCES
        ]
        for zone, name, *sums in self._introspection.usage():
            for family, value in zip(families, sums, strict=True):
                family.add_metric([zone, name], value)
        yield from families
        claims = core.GaugeMetricFamily(
            f'{PREFIX}claims',
            'Claims, by state and age: up to that, and older than the one '
            'before',
            labels=['state', 'age'],
        )
        for (state, age), number in self._introspection.claims().items():
            claims.add_metric([state, age], number)
        yield claims
        rankings = core.CounterMetricFamily(
            f'{PREFIX}rankings',
            'Rankings of hosts, by whether what was kept was enough',
            labels=['cache'],
        )
        for outcome, number in self._introspection.rankings().items():
            rankings.add_metric([outcome], number)
        yield rankings
        for name, is_there in self._introspection.connected().items():
            yield core.GaugeMetricFamily(
                f'{PREFIX}{name}_up',
                f'Whether the {name} can be reached',
                value=int(is_there),
            )
        info = core.GaugeMetricFamily(
            f'{PREFIX}build_info', 'Versions', labels=list(self._versions)
        )
        info.add_metric(list(self._versions.values()), 1)
        yield info


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
        yield core.GaugeMetricFamily(PREFIX + name, text, value=value)
    for name, text, key in (
        ('batches', 'Batches that were decided', 'batches'),
        ('batched_requests', 'Requests in decided batches', 'requests'),
    ):
        yield core.CounterMetricFamily(PREFIX + name, text, status[key])


def _counters(counters: Mapping[str, Any]) -> Iterator[Any]:
    # Counters without labels exist from the start: an increase that comes
    # with the counter itself would not be seen.
    for name in _HELP.keys() - _LABELS.keys() - counters.keys():
        yield _counter(PREFIX + name, _help(name), (), 0)
    for name, counts in counters.items():
        labels = _LABELS.get(name, ('label',))
        yield _counter(PREFIX + name, _help(name), labels, counts)


def _help(name: str) -> str:
    return _HELP.get(name, name.replace('_', ' '))


def _counter(
    name: str, text: str, labels: tuple[str, ...], counts: Any
) -> Any:
    if not isinstance(counts, Mapping):
        return core.CounterMetricFamily(name, text, counts)
    family = core.CounterMetricFamily(name, text, labels=labels)
    for value, count in counts.items():
        family.add_metric(value.rsplit(' ', len(labels) - 1), count)
    return family


def _verb_of(route: str) -> str | None:
    is_verb = route.startswith(VERB_ROUTE)
    return route.removeprefix(VERB_ROUTE) if is_verb else None


def _with_verb_calls(counters: Mapping[str, Any]) -> dict[str, Any]:
    """Add the number of calls of each verb.

    A reply with another status than 200 is an error, as is a reply with a
    text in ``Error``.
    """
    calls: Counter[str] = Counter()
    failed: Counter[str] = Counter(counters.get(VERB_ERRORS, {}))
    for label, count in counters.get('http_requests', {}).items():
        route, _, status = label.rpartition(' ')
        verb = _verb_of(route)
        if verb is None:
            continue
        calls[verb] += count
        if status != '200':
            failed[verb] += count
    if not calls:
        return dict(counters)
    return {**counters, VERB_CALLS: calls, VERB_ERRORS: failed}


def _histograms(
    distributions: Mapping[tuple[str, str], Any],
) -> Iterable[Any]:
    stages = core.HistogramMetricFamily(
        f'{PREFIX}stage_duration_seconds',
        'Duration of a stage',
        labels=['stage'],
    )
    requests = core.HistogramMetricFamily(
        f'{PREFIX}http_request_duration_seconds',
        'Duration of HTTP requests, from their last byte to their reply',
        labels=['route'],
    )
    calls = core.HistogramMetricFamily(
        f'{PREFIX}extender_verb_duration_seconds',
        'Duration of calls by a kube-scheduler, by verb',
        labels=['verb'],
    )
    families = [stages, requests, calls]
    for (kind, label), distribution in sorted(distributions.items()):
        buckets, total = _buckets(distribution)
        if kind == 'stage':
            stages.add_metric([label], buckets, total)
            continue
        if kind == 'http':
            requests.add_metric([label], buckets, total)
            verb = _verb_of(label)
            if verb is not None:
                calls.add_metric([verb], buckets, total)
            continue
        families.append(
            core.HistogramMetricFamily(
                f'{PREFIX}{label}_size',
                f'Requests in a {label}',
                buckets=buckets,
                sum_value=total,
            )
        )
    return families


def _buckets(
    distribution: tuple[tuple[float, ...], list[int], float],
) -> tuple[list[tuple[str, float]], float]:
    """Return buckets as Prometheus has them, cumulative, and the sum."""
    bounds, counts, total = distribution
    cumulative = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip([*bounds, None], counts, strict=True):
        cumulative += count
        edge = '+Inf' if bound is None else str(bound)
        buckets.append((edge, float(cumulative)))
    return buckets, total


def connections(count: int, closed: Mapping[str, int]) -> Iterable[Any]:
    """Return the families of the HTTP server's connections.

    :param count: how many are open
    :param closed: how many were closed by the server, by reason
    """
    yield core.GaugeMetricFamily(
        f'{PREFIX}http_connections', 'Open HTTP connections', value=count
    )
    family = core.CounterMetricFamily(
        f'{PREFIX}http_connections_closed',
        'HTTP connections closed by the server, by reason',
        labels=['reason'],
    )
    for reason, number in closed.items():
        family.add_metric([reason], number)
    yield family


class Metrics:
    """``/metrics``: all families in the text format."""

    def __init__(
        self, scheduler: Scheduler, more: Callable[[], Iterable[Any]]
    ) -> None:
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(_Collector(scheduler, more))
        self._registry.register(_MeasuredCollector(scheduler.introspection))
        # Processor time, memory, open files and start of the process.
        prometheus_client.ProcessCollector(registry=self._registry)

    def serve(self, request: HttpRequest, content: bytes) -> Reply:
        text = prometheus_client.generate_latest(self._registry)
        return Reply(200, text, prometheus_client.CONTENT_TYPE_LATEST)
