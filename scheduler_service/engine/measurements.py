"""The counters and histograms of a daemon, which ``/metrics`` shows.

Owns all of these numbers, in a registry of its own. Any thread may call any
method: the library has a lock for each number.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

import prometheus_client

# What recent() covers, and how often it is measured, in seconds.
_RECENT_S = 60.0
_SAMPLE_S = 5.0
_RECENT_COUNTS = 'requests', 'refusals'
_P95 = 0.95
# Upper ends of the buckets of times, in seconds.
BUCKETS = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0,
)  # fmt: skip
# The same of whole requests: times that service objectives name.
_WHOLE = 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0
# Upper ends of the buckets of sizes.
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1000.0)
# Prefix of the routes of verbs that a kube-scheduler calls.
VERB_ROUTE = '/extender/'
_COUNTERS = {
    'requests': 'Requests with a reply, by outcome',
    'requests_expired': 'Requests dropped after the timeout of their caller',
    'requests_quarantined': 'Messages put into quarantine',
    'requests_redelivered': 'Messages that were delivered before',
    'requests_with_unknown_group': 'Requests placed without their group',
    'outcomes_repeated': 'Redelivered requests with their recorded outcome',
    'outcomes_expired': 'Redelivered requests whose outcome was deleted',
    'filter_rejections': 'Requests that failed, by filter that rejected hosts',
    'refusals': 'Requests that failed, by filter that left no host, and error',
    'reloads': 'Reloads of the configuration, by outcome',
    'extender_calls': 'Calls of extenders, by extender, verb and outcome',
    'http_requests': 'HTTP requests, by route and status',
    'extender_verb_calls': 'Calls by a kube-scheduler, by verb',
    'extender_verb_nodes': 'Nodes of calls by a kube-scheduler, by verb',
    'extender_verb_errors': 'Calls by a kube-scheduler that failed, by verb',
    'call_heartbeats': 'Heartbeats sent to waiting callers, by outcome',
    'answers_undone': 'Answers without a caller, by result of their undoing',
    'compute_changes': 'Casts of compute services, by method',
    'kubernetes_events': 'Changes of nodes and pods of a cluster',
    'kubernetes_relists': 'How often nodes or pods were listed anew',
    'kubernetes_watch_errors': 'Failed calls of an API server, by kind',
    'pods_assumed': 'Pods that were assumed on a node, by outcome',
    'claims_lost': 'Claims lost to another request on the same hosts',
    'shadow_verdicts': 'Requests of another scheduler, by how ours compare',
    'database_lost': 'How often the database became unreachable',
    'database_retries': 'Transactions repeated, by reason',
    'database_timeouts': 'Transactions ended by a time limit',
    'database_history_changes': 'How often the database went back in time',
    'history_entries_dropped': 'Entries that could not be recorded',
    'stages_undone': 'What was undone of released claims, by stage',
    'extender_binds_left': 'Released claims that an extender may have bound',
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
    'placement_claims_forgotten': 'Claims without allocations, released',
    'placement_failures': 'Requests refused because placement failed',
}
# Name -> help, and upper ends of the buckets.
_HISTOGRAMS = {
    'request_duration_seconds': (
        'Duration of messages, from their arrival to their reply', _WHOLE,
    ),
    'stage_duration_seconds': ('Duration of a stage', BUCKETS),
    'http_request_duration_seconds': (
        'Duration of HTTP requests, from their last byte to their reply',
        BUCKETS,
    ),
    'extender_verb_duration_seconds': (
        'Duration of calls by a kube-scheduler, by verb', BUCKETS,
    ),
    'batch_size': ('Requests in a batch', SIZES),
    'placement_size': ('Requests in a placement', SIZES),
}  # fmt: skip
_LABELS = {
    'requests': ('outcome',),
    'filter_rejections': ('filter',),
    'refusals': ('filter', 'cause'),
    'reloads': ('outcome',),
    'extender_calls': ('extender', 'verb', 'outcome'),
    'http_requests': ('route', 'status'),
    'extender_verb_calls': ('verb',),
    'extender_verb_nodes': ('verb', 'direction'),
    'extender_verb_errors': ('verb',),
    'call_heartbeats': ('outcome',),
    'answers_undone': ('outcome',),
    'compute_changes': ('method',),
    'kubernetes_events': ('kind',),
    'kubernetes_relists': ('kind',),
    'kubernetes_watch_errors': ('kind',),
    'pods_assumed': ('outcome',),
    'shadow_verdicts': ('verdict',),
    'database_retries': ('reason',),
    'stages_undone': ('stage',),
    'request_duration_seconds': ('verb', 'outcome'),
    'stage_duration_seconds': ('stage',),
    'http_request_duration_seconds': ('route',),
    'extender_verb_duration_seconds': ('verb',),
}
# A series more for each number would say when it was first counted.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class _Counter(prometheus_client.Counter):
    @property
    def value(self) -> int:
        """The number, of a counter without labels or with their values."""
        return int(self._value.get())


class Measurements:
    """Counters and histograms, by name and values of their labels.

    :param clock: monotonic seconds
    :ivar registry: of all of them
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.registry = prometheus_client.CollectorRegistry()
        self._metrics: dict[str, Any] = {}
        how: Any = {
            'namespace': 'scheduler_service', 'registry': self.registry,
        }  # fmt: skip
        for name, text in _COUNTERS.items():
            labels = _LABELS.get(name, ())
            self._metrics[name] = _Counter(name, text, labels, **how)
        for name, (text, bounds) in _HISTOGRAMS.items():
            self._metrics[name] = prometheus_client.Histogram(
                name, text, _LABELS.get(name, ()), buckets=bounds, **how
            )
        # What was counted: the library takes longer to find it by its labels.
        self._found: dict[tuple[str, tuple[str, ...]], Any] = {}
        # (time, counters, durations), the oldest about a minute ago.
        self._samples: deque[tuple[float, Any, Any]] = deque()
        self.sample()

    def _find(self, name: str, labels: tuple[str, ...]) -> Any:
        metric = self._metrics[name]
        found = metric.labels(*labels) if labels else metric
        return self._found.setdefault((name, labels), found)

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Count something that happened.

        :raises LookupError: there is no such counter
        """
        counter = self._found.get((name, labels))
        (counter or self._find(name, labels)).inc(by)

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Add a value to a histogram.

        :raises LookupError: there is no such histogram
        """
        histogram = self._found.get((name, labels))
        (histogram or self._find(name, labels)).observe(value)

    def time(self, stage: str, seconds: float) -> None:
        """Add to the histogram of how long a stage of a request takes."""
        self.observe('stage_duration_seconds', seconds, stage)

    def served(self, route: str, status: int, seconds: float) -> None:
        """Count an HTTP request, and add to how long these take.

        A verb's reply with another status than 200 is an error of the verb.
        """
        self.count('http_requests', route, str(status))
        self.observe('http_request_duration_seconds', seconds, route)
        if route.startswith(VERB_ROUTE):
            verb = route.removeprefix(VERB_ROUTE)
            self.count('extender_verb_calls', verb)
            self.count('extender_verb_errors', verb, by=status != 200)
            self.observe('extender_verb_duration_seconds', seconds, verb)

    def counters(self) -> dict[str, Any]:
        """Return what was counted by name; with labels as a dict of them."""
        counts: dict[str, Any] = {}
        for (name, labels), found in sorted(self._found.items()):
            if name not in _COUNTERS:
                continue
            if labels:
                counts.setdefault(name, {})[' '.join(labels)] = found.value
            else:
                counts[name] = found.value
        return counts

    def _durations(self) -> dict[tuple[str, ...], float]:
        """Return the samples of stages: by what each is, stage and bucket."""
        (family,) = self._metrics['stage_duration_seconds'].collect()
        return {
            (each.name.rpartition('_')[2], *each.labels.values()): each.value
            for each in family.samples
        }

    def sample(self) -> None:
        """Keep the present values for :meth:`recent`, every few seconds."""
        now, samples = self._clock(), self._samples
        if samples and now < samples[-1][0] + _SAMPLE_S:
            return
        samples.append((now, self.counters(), self._durations()))
        while samples[0][0] < now - _RECENT_S - _SAMPLE_S:
            samples.popleft()

    def recent(self) -> dict[str, Any]:
        """Return what happened in the last minute, or since the start.

        :return: ``seconds`` that are covered; ``requests`` by outcome and
            ``refusals`` by filter and error, as counts; ``stages`` by name,
            each ``{count, mean_ms, p95_ms}``
        """
        at, counts, durations = self._samples[0]
        present = self.counters()
        added = {
            key: value - durations.get(key, 0.0)
            for key, value in self._durations().items()
        }
        return {
            'seconds': round(self._clock() - at, 1),
            **{
                name: dict(
                    Counter(present.get(name)) - Counter(counts.get(name))
                )
                for name in _RECENT_COUNTS
            },
            'stages': {
                stage: _figures(added, stage)
                for (what, stage, *_), number in added.items()
                if what == 'count' and number
            },
        }


def _figures(
    added: Mapping[tuple[str, ...], float], stage: str
) -> dict[str, float]:
    """Return the figures of what was added for a stage."""
    number = added['count', stage]
    bounds = (
        float(key[2])
        for key, value in added.items()
        if key[:2] == ('bucket', stage) and value >= _P95 * number
    )
    return {
        'count': int(number),
        'mean_ms': round(1000 * added['sum', stage] / number, 2),
        # The upper end of the bucket; the last one has none.
        'p95_ms': 1000 * min(next(bounds), BUCKETS[-1]),
    }
