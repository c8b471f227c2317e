"""The service as a kube-scheduler's extender: evaluates nodes for a pod.

A stored node is evaluated by its stored state; any other by the object that
was sent. :class:`PodEvaluator` owns copies of the newest host table; any
thread may call it.

What the verbs answered is stored by :class:`PodDecisions`, which any thread
may call. A pod's decisions are stored as those of other requests are: its uid
is the request id, its namespace and name are the id in the caller's log, and
those of its group are the global id.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.columns.dictionary import Ints, Rows
from scheduler_service.columns.table_copies import TableCopy
from scheduler_service.engine.newest_copy import NewestCopy
from scheduler_service.kube.node_reader import SentNodes, StoredNodes
from scheduler_service.kube.pod_load import (
    MAX_SCORE,
    LoadScoring,
    NodeRows,
    PodDemand,
    may_pass_later,
    shortages,
)
from scheduler_service.kube.pod_reader import (
    IgnoredPods,
    PlacedPod,
    Pod,
    PodReader,
    PodRequest,
    PodUsage,
    parts_of,
)
from scheduler_service.kube.pod_use import PodUse
from scheduler_service.model import Placement, Selection
from scheduler_service.model.limits import NAME_LENGTH
from scheduler_service.pipeline import HostPipeline
from scheduler_service.pipeline.hosts import Evaluation
from scheduler_service.settings import Settings
from scheduler_service.store.records.decision_list import POD_KIND
from scheduler_service.store.records.decisions import Decision

_MAX_REASON_LENGTH = 1000
# Nodes for which the reason of one filter is computed; any further nodes get
# the last of these reasons.
_MAX_REASONS = 200
_MAX_ASKED = 10_000
# What rejects nodes beside the filters.
_FREE = 'free_resources'
_UNREAD = 'node_objects'
# The best nodes that a decision has.
_BEST = 10
# Pods whose groups are kept for the call that binds them.
_MAX_GROUPS = 10_000


class Nodes:
    """The nodes of one call.

    :ivar names: in the order they were sent
    :ivar items: name -> JSON of the v1 Node; None where only names were sent
    :ivar stored: kept by the evaluator: the results of the last call, where
        all nodes are stored
    """

    __slots__ = ('items', 'names', 'stored')

    def __init__(
        self,
        names: list[str],
        items: Mapping[str, msgspec.Raw] | None = None,
    ) -> None:
        self.names = names
        self.items = items
        self.stored: tuple[Pod, TableCopy, _Read] | None = None

    def rows_in(self, copy: TableCopy) -> Rows | None:
        """Return the rows of the nodes, int64[m].

        None if a node is not in the table. Joining bytes is faster than
        building an array of numbers.
        """
        names, packed = self.names, copy.packed_rows
        try:
            if len(names) > 1:
                texts: Sequence[bytes] = operator.itemgetter(*names)(packed)
            else:
                texts = [packed[name] for name in names]
        except KeyError:
            return None
        return np.frombuffer(b''.join(texts), np.int64)


class PodFilterResult(NamedTuple):
    """The result of a filter call.

    :ivar passed: names of nodes, in the order they were sent
    :ivar failed: node -> reason, where evicting pods may help
    :ivar never: node -> reason, where evicting pods cannot help
    :ivar rejections: by filter; None: the pod is ignored
    """

    passed: list[str]
    failed: dict[str, str]
    never: dict[str, str]
    rejections: list[Rejection] | None


class Scores(NamedTuple):
    """The result of a prioritize call.

    :ivar names: of nodes, in the order they were sent
    :ivar values: their scores, int64[m]
    :ivar text: the reply in JSON
    :ivar is_ignored: whether the pod was not scored
    """

    names: list[str]
    values: Ints
    text: msgspec.Raw
    is_ignored: bool = False


class ScoreTexts:
    """Writes the reply of prioritize for nodes of one table from cached texts.

    Writing the names and scores of hundreds of nodes takes longer than
    computing the scores. So the text of each node is cached, padded with
    blanks to equal length: JSON allows blanks between values.

    :param names: of the nodes, by row
    """

    def __init__(self, names: Sequence[str]) -> None:
        heads = [b'{"Host":%s,"Score":' % wire.encode(name) for name in names]
        width = max(map(len, heads), default=0)
        self._heads = _matrix([head.rjust(width) for head in heads], width)
        tails = [b'%2d},' % score for score in range(MAX_SCORE + 1)]
        self._tails = _matrix(tails, len(tails[0]))

    def write(self, rows: Rows, scores: Ints) -> msgspec.Raw:
        """Return the reply.

        :param rows: int64[m], of the nodes, at least one
        :param scores: int64[m], of these nodes, 0 to 10 each
        """
        texts = np.concatenate(
            (self._heads.take(rows, axis=0), self._tails.take(scores, axis=0)),
            axis=1,
        )
        # Without the last comma.
        return msgspec.Raw(b'[%s]' % texts.ravel().data[:-1])


def _matrix(texts: Sequence[bytes], width: int) -> np.ndarray:
    """Return texts that are equally long, uint8[n, width]."""
    joined = np.frombuffer(b''.join(texts), np.uint8)
    return joined.reshape(len(texts), width)


class _Part(NamedTuple):
    """The nodes of a call that are in one table.

    :ivar sent: their rows and numbers, in the order of the names
    :ivar texts: of all nodes of the table; None: they are not stored
    """

    results: Evaluation
    names: Sequence[str]
    sent: NodeRows
    texts: ScoreTexts | None = None


# What a pod requests, its nodes by table, and name -> reason of others.
_Read = tuple[PodDemand, list[_Part], dict[str, str]]


class PodPlace(NamedTuple):
    """The host that a pod is about to be bound to, and what it takes.

    :ivar left: uids of pods that had some of it until a moment ago
    """

    host: str
    node: str
    amounts: dict[str, int]
    left: Sequence[str] = ()


class PodPipeline(NamedTuple):
    """The filters and weighers for pods.

    :ivar scoring: how much the load of nodes counts
    :ivar ignored: pods to which none of it applies
    """

    pipeline: HostPipeline
    scoring: LoadScoring
    ignored: IgnoredPods = IgnoredPods()


class PodEvaluator:
    """Filters and scores nodes for pods.

    :param newest: gives copies of the newest host table
    :param use: what pods use
    :param reader: of the pods of calls
    :param sent_nodes: nodes that are not in the store
    :param assuming: whether a scored pod counts on its likely node; only
        where the pods of the cluster are followed or listed
    :param booked: whether what pods take of hosts is in the store
    :param of_aggregates: whether what they take of aggregates is
    :param waiting: whether pods with extended resources, which only this
        service counts, are refused until all pods were listed once
    :ivar are_nodes_loaded: whether nodes can be evaluated yet
    """

    def __init__(
        self,
        pods: PodPipeline,
        newest: NewestCopy,
        use: PodUse,
        reader: PodReader,
        sent_nodes: SentNodes,
        assuming: bool = False,
        booked: bool = False,
        of_aggregates: bool = False,
        waiting: bool = False,
        are_nodes_loaded: Callable[[], bool] = lambda: True,
    ) -> None:
        self._pipeline, self._scoring, self._ignored = pods
        self._lock = threading.Lock()
        self._stored = StoredNodes(self._pipeline, newest)
        self._use = use
        self._reader = reader
        self._sent_nodes = sent_nodes
        self.are_nodes_loaded = are_nodes_loaded
        self._assuming = assuming
        self.booked, self._of_aggregates = booked, of_aggregates
        self._waiting = waiting
        # The pod that was filtered last, with the nodes that passed, until
        # they are scored.
        self._unplaced: tuple[Pod, Nodes] | None = None
        # What the pods of the last calls use, by uid: they may wait longer to
        # be bound than they are assumed.
        self._asked: dict[str, PodUsage] = {}

    def use(self, pods: PodPipeline) -> None:
        """Evaluate by another pipeline, from the next call on."""
        with self._lock:
            self._pipeline, self._scoring, self._ignored = pods
            self._stored.use(self._pipeline)

    def filter(
        self, pod: Pod, nodes: Nodes, to_place: bool = True
    ) -> PodFilterResult:
        """Return the nodes that pass, and the reasons of the rest.

        A node whose object is invalid fails alone.

        :param to_place: whether the pod goes to a node that passes
        :raises WireError: the pod is invalid
        :raises ServiceBusy: the pods of the cluster are not listed yet
        """
        never: dict[str, str] = {}
        with self._lock:
            if self._ignored.has(pod):
                return PodFilterResult(nodes.names, {}, never, None)
            self._assume_last(pod.metadata.uid)
            demand, parts, unread = self._read(pod, nodes)
            failed, rejections = {**unread}, []
            if failed:
                reason = next(iter(failed.values()))
                rejections = [Rejection(_UNREAD, len(failed), reason, False)]
            for part in parts:
                rejections += _reject(
                    part, self._pipeline.settings, failed, never
                )
                full = self._full(part.sent, part.names, demand)
                before = len(failed)
                for name, reason in full.items():
                    if name not in never:
                        failed.setdefault(name, reason)
                if more := len(failed) - before:
                    rejections.append(Rejection(_FREE, more, reason, False))
            passed = nodes.names
            if failed or never:
                rejected = failed.keys() | never.keys()
                passed = [name for name in passed if name not in rejected]
            if self._assuming and to_place:
                self._unplaced = pod, Nodes(passed, nodes.items)
        return PodFilterResult(passed, failed, never, rejections)

    def prioritize(self, pod: Pod, nodes: Nodes) -> Scores:
        """Return scores of 0 to 10; 0 for all nodes if they are equal.

        The pod is assumed to go to the best node.

        :raises WireError: the pod is invalid
        :raises ServiceBusy: the pods of the cluster are not listed yet
        """
        with self._lock:
            if self._ignored.has(pod):
                return _equal(nodes.names)._replace(is_ignored=True)
            self._unplaced = None
            return self._prioritize(pod, nodes)

    def _prioritize(self, pod: Pod, nodes: Nodes) -> Scores:
        demand, parts, _ = self._read(pod, nodes)
        if not parts:
            return _equal(nodes.names)
        values = self._scores(parts, demand)
        names = parts[0].names
        if len(parts) > 1:
            names = [name for part in parts for name in part.names]
        if self._assuming and demand.uid:
            best = names[int(values.argmax())]
            self._use.assume(PlacedPod(demand.uid, best, demand.usage))
        if names is nodes.names:
            texts = parts[0].texts
            if texts is None:
                return _written(nodes.names, values)
            text = texts.write(parts[0].sent.rows, values)
            return Scores(nodes.names, values, text)
        scores = dict.fromkeys(nodes.names, 0)
        scores.update(zip(names, values.tolist(), strict=True))
        return _written(list(scores), np.array(list(scores.values())))

    def _scores(self, parts: Sequence[_Part], demand: PodDemand) -> Ints:
        weights = [part.results.totals(part.sent.rows) for part in parts]
        distances = None
        if self._use.complete or not self._assuming:
            distances = self._scoring.distances(
                self._use,
                [part.sent for part in parts],
                demand,
                self._pipeline.settings,
            )
        total = None
        if distances is None or any(weight is not None for weight in weights):
            total = np.concatenate(
                [
                    np.zeros(len(part.names)) if weight is None else weight
                    for part, weight in zip(parts, weights, strict=True)
                ]
            )
        return self._scoring.scores(distances, total, self._assuming)

    def _assume_last(self, instead: str = '') -> None:
        """Assume the node of the last pod, if it was filtered but not scored.

        A kube-scheduler asks for no scores if a single node is left, or if it
        calls no extender for scores.

        :param instead: uid of the pod that is filtered now, maybe the same
        """
        if self._unplaced is None:
            return
        pod, nodes = self._unplaced
        self._unplaced = None
        uid = pod.metadata.uid
        if nodes.names and uid != instead and not self._use.is_seen(uid):
            # A fault of a weigher is an error for calls for scores alone.
            with contextlib.suppress(errors.SchedulerError):
                self._prioritize(pod, nodes)

    def reserve(
        self, uid: str, node: str, of: Pod | None = None
    ) -> PodPlace | None:
        """Count a pod, in memory alone, on the node that it is to be bound to.

        :param of: the pod, where it was read for this; None: this service may
            have filtered nodes for it
        :return: its place, and :meth:`end_reservation` is due; None: the pod
            was seen, or is unknown and counts once it is seen
        :raises Conflict: pods that were placed meanwhile took the resources,
            the node is not kept as a host, or another call binds the pod
        """
        with self._lock:
            if self._use.is_binding(uid):
                raise errors.Conflict('Another call is binding the pod')
            usage = self._asked.get(uid)
            if of is not None:
                usage = self._usage(of, node)
            if usage is None or not self._assuming or self._use.is_seen(uid):
                return None
            copy = self._stored.newest()
            place = PodPlace('', node, {})
            if copy is not None and node in copy.rows:
                row = copy.rows[node]
                sent = self._stored_rows(copy, np.array([row]))
                # A kube-scheduler has weighed nominations before.
                demand = PodDemand(uid, usage, math.inf)
                full = self._full(sent, [node], demand)
                if full:
                    raise errors.Conflict(f'{node}: {full[node]}')
                parts = {
                    name: int(
                        self._use.used(parts_of(name), sent.numbers, uid)[0]
                    )
                    for name in usage.parts
                }
                rows = copy.table.rows_taken_from(row, usage.classes)
                place = PodPlace(
                    copy.table.host_at(row),
                    copy.table.node_at(row),
                    usage.claimed(parts),
                    self._use.left_from(sent.every.take(rows)),
                )
            elif self.booked and usage.is_claimed:
                # It may be newer than the table.
                found = self._sent_nodes.find(node)
                if found is None:
                    raise errors.Conflict(f'{node} is not kept as a host')
                host = found.host
                place = PodPlace(
                    host.host, host.hypervisor_hostname, usage.claimed({})
                )
            self._use.see(PlacedPod(uid, node, usage), binding=True)
            return place

    def knows(self, uid: str) -> bool:
        """Whether it is known what a pod uses."""
        return uid in self._asked

    def ignores(self, pod: Pod) -> bool:
        """Whether a pod is left to the kube-scheduler."""
        return self._ignored.has(pod)

    def _usage(self, pod: Pod, node: str) -> PodUsage:
        """Return what a pod uses that a host offers, or its new node does."""
        self._stored.newest()
        known = self._stored.offered | self._sent_nodes.offered
        found = self._sent_nodes.find(node)
        if found is not None:
            known |= found.host.resources.keys()
        return self._reader.usage(pod).having(known)

    def _remember(self, demand: PodDemand) -> None:
        self._asked.pop(demand.uid, None)
        self._asked[demand.uid] = demand.usage
        if len(self._asked) > _MAX_ASKED:
            del self._asked[next(iter(self._asked))]

    def end_reservation(self, uid: str, bound: bool) -> None:
        """Note that a pod was bound, or stop counting it."""
        self._use.end_binding(uid, bound)

    def _full(
        self, sent: NodeRows, names: Sequence[str], demand: PodDemand
    ) -> dict[str, str]:
        if not demand.usage.is_claimed:
            return {}
        reasons = shortages(
            self._use, sent, demand, self.booked, self._of_aggregates
        )
        return {
            names[at]: f'{_FREE}: {text}'[:_MAX_REASON_LENGTH]
            for at, text in reasons.items()
        }

    def _read(self, pod: Pod, nodes: Nodes) -> _Read:
        """Read the pod and the nodes of a call.

        Stored nodes are in a copy of the newest table, all others in a table
        made of their documents. A foreign class that no node offers is left
        to others.
        """
        self._use.forget_old()
        copy, last = self._stored.newest(), nodes.stored
        if last is not None and last[0] is pod and last[1] is copy:
            return last[2]
        request = self._reader.request(pod)
        if request.usage.classes and self._waiting and not self._use.complete:
            raise errors.ServiceBusy(
                'The pods of the cluster are not listed yet'
            )
        names, rows, unstored = nodes.names, None, nodes.names
        if copy is not None:
            rows, unstored = nodes.rows_in(copy), []
            if rows is None:
                names = [name for name in nodes.names if name in copy.rows]
                unstored = [n for n in nodes.names if n not in copy.rows]
                rows = np.array([copy.rows[name] for name in names], np.int64)
        readable, failed = list[str](), dict[str, str]()
        if unstored:
            table, readable, failed = self._sent_nodes.table_of(
                unstored, nodes.items, request.usage.classes
            )
        usage = request.usage
        if usage.foreign:
            known = self._stored.offered | self._sent_nodes.offered
            request = request.having(usage.having(known))
        priority = pod.spec.priority or 0
        demand = PodDemand(pod.metadata.uid, request.usage, priority)
        self._remember(demand)
        parts: list[_Part] = []
        if copy is not None and rows is not None and len(rows):
            parts.append(self._stored_part(request, copy, names, rows))
        if readable:
            results = self._pipeline.evaluate(table, request.request)
            numbers = self._use.numbers_of(readable, passing=True)
            sent = NodeRows(table, np.arange(len(readable)), numbers)
            parts.append(_Part(results, readable, sent))
        if copy is not None and not unstored:
            nodes.stored = pod, copy, (demand, parts, failed)
        return demand, parts, failed

    def _stored_part(
        self,
        request: PodRequest,
        copy: TableCopy,
        names: Sequence[str],
        rows: Rows,
    ) -> _Part:
        texts = copy.table.topology.memoize(
            'score texts', functools.partial(ScoreTexts, copy.names)
        )
        sent = self._stored_rows(copy, rows)
        return _Part(self._stored.results(request), names, sent, texts)

    def _stored_rows(self, copy: TableCopy, rows: Rows) -> NodeRows:
        numbers: Rows = copy.table.topology.memoize(
            'pod numbers', functools.partial(self._use.numbers_of, copy.names)
        )
        return NodeRows(copy.table, rows, numbers)


def _reject(
    part: _Part,
    settings: Settings,
    failed: dict[str, str],
    never: dict[str, str],
) -> list[Rejection]:
    results, names, sent, _ = part
    rejections: list[Rejection] = []
    if results.do_pass(sent.rows):
        return rejections
    first, filters = results.first_rejecting()
    numbers = first.take(sent.rows)
    for number in np.unique(numbers[numbers >= 0]).tolist():
        host_filter = filters[number]
        rejected = np.flatnonzero(numbers == number).tolist()
        is_final = not may_pass_later(host_filter)
        into = never if is_final else failed
        text = ''
        for at in rejected[:_MAX_REASONS]:
            row = int(sent.rows[at])
            key = host_filter.name, row
            if key not in results.reasons:
                with errors.naming(host_filter.name):
                    reason = host_filter.reason(
                        sent.table, row, results.request, settings
                    )
                text = f'{host_filter.name}: {reason}'[:_MAX_REASON_LENGTH]
                results.reasons[key] = text.replace('%', ' percent')
            text = into[names[at]] = results.reasons[key]
        into.update(
            dict.fromkeys([names[at] for at in rejected[_MAX_REASONS:]], text)
        )
        rejections.append(
            Rejection(host_filter.name, len(rejected), text, is_final)
        )
    return rejections


def _equal(names: list[str]) -> Scores:
    return _written(names, np.zeros(len(names), np.int64))


def _written(names: list[str], values: Ints) -> Scores:
    return Scores(names, values, wire.score_list(names, values.tolist()))


class Rejection(NamedTuple):
    """The nodes that one filter was the first to reject.

    :ivar reason: of one of them
    :ivar is_final: whether evicting pods cannot help
    """

    filter: str
    nodes: int
    reason: str
    is_final: bool


class PodDecisions:
    """Has the answers of verbs stored, with their reasons.

    :param put: has a decision stored soon
    :ivar enabled: whether any is stored
    """

    def __init__(
        self, put: Callable[[Decision], None], enabled: bool = True
    ) -> None:
        self._put = put
        self.enabled = enabled
        self._lock = threading.Lock()
        # By uid: calls of the verb bind only name the pod.
        self._groups: dict[str, str] = {}

    def filtered(
        self,
        verb: str,
        pod: Pod,
        nodes: int,
        passed: int,
        rejections: Sequence[Rejection] | None,
    ) -> None:
        """Record which filters rejected how many nodes.

        :param verb: ``filter`` or ``preempt``
        :param nodes: how many were sent
        :param passed: how many were returned
        :param rejections: in the order of the filters; None: no decision
        """
        if rejections is None or not self.enabled:
            return
        funnel, filters, left = [], [], nodes
        for name, out, reason, _ in rejections:
            funnel.append({'filter': name, 'start': left, 'end': left - out})
            filters.append({'filter': name, 'out': out, 'reason': reason})
            left -= out
        why = {'hosts': nodes, 'passed': passed, 'funnel': funnel,
               'filters': filters}  # fmt: skip
        if passed:
            self._record(verb, pod, 'passed', {'explanation': why})
        else:
            error = errors.NoValidHost('No node passes', **why)
            self.failed(verb, pod, error)

    def scored(self, pod: Pod, names: Sequence[str], scores: Ints) -> None:
        """Record the nodes with the highest scores.

        :param scores: int64[m], of the named nodes
        """
        if not self.enabled:
            return
        best = np.argsort(-scores, kind='stable')[:_BEST].tolist()
        nodes = [names[at] for at in best]
        finalists = {'host': nodes, 'node': nodes, 'weighers': {},
                     'weight': scores[best].tolist()}  # fmt: skip
        why = {'hosts': len(names), 'passed': len(names), 'funnel': [],
               'finalists': finalists}  # fmt: skip
        reasons = {'explanation': why}
        self._record('prioritize', pod, 'ordered', reasons)

    def bound(self, pod: Pod, node: str) -> None:
        """Record the node to which a pod was bound."""
        selected = Selection(host=node, node=node, uuid='')
        uid = pod.metadata.uid
        place = Placement(instance_uuid=uid, selected=selected)
        self._record('bind', pod, 'chosen', {'placements': [place]})

    def failed(
        self, verb: str, pod: Pod, error: errors.SchedulerError
    ) -> None:
        """Record that no node passed, or that the verb failed."""
        self._record(verb, pod, error.name, {'error': error.to_dict()})

    def _record(
        self,
        verb: str,
        pod: Pod,
        outcome: str,
        reasons: Mapping[str, Any],
    ) -> None:
        if not self.enabled:
            return
        at, group = pod.metadata, pod.group
        namespace, name, uid = map(_stored, (at.namespace, at.name, at.uid))
        full_name = f'{namespace}/{name}'[:NAME_LENGTH]
        if group:
            group = f'{namespace}/{_stored(group)}'[:NAME_LENGTH]
            with self._lock:
                self._groups[uid] = group
                if len(self._groups) > _MAX_GROUPS:
                    del self._groups[next(iter(self._groups))]
        group = group or self._groups.get(uid)
        kind, why = f'{POD_KIND}{verb}', {'project_id': namespace, **reasons}
        self._put(Decision(uid, kind, outcome, why, full_name, group))


def _stored(text: str) -> str:
    """Return a name that every database can store."""
    return (text if text.isprintable() else ascii(text))[:NAME_LENGTH]
