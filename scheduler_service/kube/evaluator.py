"""The service as a kube-scheduler's extender: evaluates nodes for a pod.

A node that the store knows is evaluated as it is stored; any other by the
object that was sent. :class:`PodEvaluator` owns copies of the newest host
table; any thread may call it.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.columns.dictionary import Ints, Rows
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.columns.table_copies import TableCopy
from scheduler_service.kube.node_tables import (
    SentNodes,
    StoredNodes,
    UnknownNodes,
)
from scheduler_service.kube.pod_filters import may_pass_later
from scheduler_service.kube.pod_load import (
    LoadScoring,
    NodeRows,
    PodDemand,
    shortages,
)
from scheduler_service.kube.pod_reader import (
    PlacedPod,
    PodReader,
    PodRequest,
    uid_of,
)
from scheduler_service.kube.pod_use import PodUse
from scheduler_service.kube.score_texts import ScoreTexts
from scheduler_service.pipeline import HostPipeline
from scheduler_service.pipeline.evaluation import Evaluation
from scheduler_service.settings import Settings

_MAX_REASON_LENGTH = 1000
# Reasons are computed for so many nodes that one filter rejects; the others
# get the last of these.
_MAX_REASONS = 200


class Nodes:
    """The nodes of one call.

    :ivar names: in the order they were sent
    :ivar document: gives a v1 Node by its name, as ``msgspec.Raw`` or parsed;
        None where only names were sent
    :ivar pod: for the evaluator: the pod of the last call, and what was read
        from it
    :ivar stored: for the evaluator: by what the last call evaluated the
        nodes, where all of them are stored
    """

    __slots__ = ('document', 'names', 'pod', 'stored')

    def __init__(
        self,
        names: list[str],
        document: Callable[[str], Any] | None = None,
    ) -> None:
        self.names = names
        self.document = document
        self.pod: tuple[Any, PodRequest, PodDemand] | None = None
        self.stored: tuple[PodRequest, TableCopy, list[_Part]] | None = None

    def rows_in(self, copy: TableCopy) -> Rows | None:
        """Return the rows of the nodes, int64[m].

        None if a node is not in the table, or is named twice. Joining bytes
        is quicker than numbers are.
        """
        names, packed = self.names, copy.packed_rows
        try:
            if len(names) > 1:
                texts: Sequence[bytes] = operator.itemgetter(*names)(packed)
            else:
                texts = [packed[name] for name in names]
        except KeyError:
            return None
        rows = np.frombuffer(b''.join(texts), np.int64)
        present = np.zeros(len(copy.rows), np.bool_)
        present[rows] = True
        return rows if np.count_nonzero(present) == len(rows) else None


class PodFilterResult(NamedTuple):
    """The result of a filter call.

    :ivar passed: names of nodes, in the order they were sent
    :ivar failed: node -> reason, for those that may pass later
    :ivar never: node -> reason, for those that evicting pods cannot help
    """

    passed: list[str]
    failed: dict[str, str]
    never: dict[str, str]


class Scores(NamedTuple):
    """The result of a prioritize call.

    :ivar names: of nodes, each once, in the order they were sent
    :ivar values: their scores, int64[m]
    :ivar text: all of it in JSON
    """

    names: list[str]
    values: Ints
    text: msgspec.Raw


class _Part(NamedTuple):
    """Those nodes of a call that are in one table.

    :ivar sent: their rows and numbers, in the order of the names
    :ivar texts: of the nodes of the table; None: they are not stored
    """

    results: Evaluation
    names: Sequence[str]
    sent: NodeRows
    texts: ScoreTexts | None = None


class PodPipeline(NamedTuple):
    """By what nodes are evaluated for pods.

    :ivar scoring: how much the load of nodes counts
    """

    pipeline: HostPipeline
    scoring: LoadScoring


class PodEvaluator:
    """Filters and scores nodes for pods.

    :param snapshot: gives the newest snapshot, None before the first
    :param use: what pods use
    :param reader: of the pods of calls
    :param unknown: what becomes of nodes that the store lacks
    :param assuming: whether to assume where pods go; only where something
        reports later where they went
    :param waiting: whether pods with extended resources, which nobody else
        counts, are refused until all pods were listed once
    :ivar are_nodes_known: whether nodes can be evaluated yet
    """

    def __init__(
        self,
        pods: PodPipeline,
        snapshot: Callable[[], Snapshot | None],
        use: PodUse,
        reader: PodReader,
        unknown: UnknownNodes,
        assuming: bool = False,
        waiting: bool = False,
    ) -> None:
        self._pipeline, self._scoring = pods
        self._lock = threading.Lock()
        self._stored = StoredNodes(self._pipeline, snapshot)
        self._use = use
        self._reader = reader
        self._others = SentNodes(unknown)
        self.are_nodes_known = unknown.are_known
        self._assuming = assuming
        self._waiting = waiting
        # Whether pods were bound here: only then a pod takes room that is
        # only assumed. A daemon that binds knows soon where the pod went; no
        # other may refuse pods for one that may never be placed.
        self._binding = False
        # The pod that was filtered last, with the nodes that passed, until
        # they are scored: where it goes is still to be assumed.
        self._unplaced: tuple[Any, Nodes] | None = None

    def use(self, pods: PodPipeline) -> None:
        """Evaluate in another way, from the next call on."""
        with self._lock:
            self._pipeline, self._scoring = pods
            self._stored.use(self._pipeline)

    def filter(
        self, pod: Any, nodes: Nodes, to_place: bool = True
    ) -> PodFilterResult:
        """Return which nodes pass, and the reasons of the others.

        A node whose object cannot be read fails alone.

        :param to_place: whether the pod goes to one of those that pass
        :raises WireError: the pod cannot be read
        :raises ServiceBusy: it is not known yet what pods use
        """
        never: dict[str, str] = {}
        with self._lock:
            request, demand = self._read(pod, nodes)
            self._place_the_last(demand.uid)
            parts, failed = self._parts(request, nodes)
            for part in parts:
                _reject(part, self._pipeline.settings, failed, never)
                full = self._full(part.sent, part.names, demand)
                for name, reason in full.items():
                    if name not in never:
                        failed.setdefault(name, reason)
            passed = nodes.names
            if failed or never:
                rejected = failed.keys() | never.keys()
                passed = [name for name in passed if name not in rejected]
            if self._assuming and to_place:
                self._unplaced = pod, Nodes(passed, nodes.document)
        return PodFilterResult(passed, failed, never)

    def prioritize(self, pod: Any, nodes: Nodes) -> Scores:
        """Return scores of 0 to 10; 0 for all nodes if they are equal.

        The pod is assumed to go to the best of them.

        :raises WireError: the pod cannot be read
        :raises ServiceBusy: it is not known yet what pods use
        """
        with self._lock:
            self._unplaced = None
            return self._prioritize(pod, nodes)

    def _prioritize(self, pod: Any, nodes: Nodes) -> Scores:
        request, demand = self._read(pod, nodes)
        parts, _ = self._parts(request, nodes)
        if not parts:
            return _written(nodes.names, np.zeros(len(nodes.names), np.int64))
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
        """Return scores of 0 to 10, int64[m]."""
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
        if distances is None or any(each is not None for each in weights):
            total = np.concatenate(
                [
                    np.zeros(len(part.names)) if weight is None else weight
                    for part, weight in zip(parts, weights, strict=True)
                ]
            )
        return self._scoring.scores(distances, total, self._assuming)

    def _place_the_last(self, instead: str = '') -> None:
        """Assume where the pod goes that was filtered and never scored.

        A kube-scheduler does not have nodes scored if a single one is left,
        or if it calls no extender for scores.

        :param instead: uid of a pod that is filtered now, maybe once more
        """
        if self._unplaced is None:
            return
        pod, nodes = self._unplaced
        self._unplaced = None
        uid = uid_of(pod)
        if nodes.names and uid != instead and not self._use.is_seen(uid):
            # A weigher that fails concerns the calls for scores alone.
            with contextlib.suppress(errors.SchedulerError):
                self._prioritize(pod, nodes)

    def claim(self, uid: str, node: str) -> bool:
        """Count a pod on the node that it is about to be bound to.

        :return: whether :meth:`unclaim` is due if it is not bound
        :raises Conflict: pods that were placed meanwhile took the room
        """
        with self._lock:
            last = self._unplaced
            if last is not None and uid_of(last[0]) == uid:
                self._place_the_last()
            self._binding = True
            usage = self._use.usage_of(uid) if self._assuming else None
            if usage is None or self._use.is_seen(uid):
                return False
            copy = self._stored.newest()
            if copy is not None and node in copy.rows:
                rows = np.array([copy.rows[node]], np.int64)
                numbers = self._use.numbers_of([node])
                sent = NodeRows(copy.table, rows, numbers)
                full = self._full(sent, [node], PodDemand(uid, usage))
                if full:
                    raise errors.Conflict(f'{node}: {full[node]}')
            self._use.see(PlacedPod(uid, node, usage))
            return True

    def unclaim(self, uid: str) -> None:
        """Count a pod no more that was not bound."""
        self._use.remove(uid)

    def _read(self, pod: Any, nodes: Nodes) -> tuple[PodRequest, PodDemand]:
        """Return what a pod requests.

        :raises WireError: the pod cannot be read
        :raises ServiceBusy: it is not known yet what pods use, and the pod
            requests what nobody else counts
        """
        self._use.forget_old()
        last = nodes.pod
        if last is None or last[0] is not pod:
            request = self._reader.request(pod)
            demand = PodDemand(uid_of(pod), request.usage)
            last = nodes.pod = pod, request, demand
        _, request, demand = last
        if request.usage.classes and self._waiting and not self._use.complete:
            raise errors.ServiceBusy(
                'The pods of the cluster are not listed yet'
            )
        return request, demand

    def _full(
        self, sent: NodeRows, names: Sequence[str], demand: PodDemand
    ) -> dict[str, str]:
        """Return node -> reason, for nodes without room for the pod."""
        if not demand.usage.classes:
            return {}
        reasons = shortages(self._use, sent, demand, self._binding)
        return {
            names[at]: f'free_resources: {text}'[:_MAX_REASON_LENGTH]
            for at, text in reasons.items()
        }

    def _parts(
        self, request: PodRequest, nodes: Nodes
    ) -> tuple[list[_Part], dict[str, str]]:
        """Return the nodes by table, and name -> reason of the others.

        Stored nodes are in a copy of the newest table, the others in a table
        made of their documents.
        """
        others = nodes.names
        parts: list[_Part] = []
        copy = self._stored.newest()
        if copy is not None:
            last = nodes.stored
            if last is not None and last[0] is request and last[1] is copy:
                return last[2], {}
            names, rows = nodes.names, nodes.rows_in(copy)
            if rows is None:
                names = [
                    name
                    for name in dict.fromkeys(nodes.names)
                    if name in copy.rows
                ]
                others = [name for name in others if name not in copy.rows]
                rows = np.array([copy.rows[name] for name in names], np.int64)
            else:
                others = []
            if len(rows):
                parts.append(self._stored_part(request, copy, names, rows))
            if not others:
                nodes.stored = request, copy, parts
        if not others:
            return parts, {}
        table, listed, rejected = self._others.table_of(
            others, nodes.document, request.usage.classes
        )
        if listed:
            results = self._pipeline.evaluate(table, request.request)
            numbers = self._use.numbers_of(listed, passing=True)
            sent = NodeRows(table, np.arange(len(listed)), numbers)
            parts.append(_Part(results, listed, sent))
        return parts, rejected

    def _stored_part(
        self,
        request: PodRequest,
        copy: TableCopy,
        names: Sequence[str],
        rows: Rows,
    ) -> _Part:
        memoize = copy.table.topology.memoize
        numbers: Rows = memoize(
            'pod numbers', functools.partial(self._use.numbers_of, copy.names)
        )
        texts = memoize(
            'score texts', functools.partial(ScoreTexts, copy.names)
        )
        sent = NodeRows(copy.table, rows, numbers.take(rows))
        return _Part(self._stored.results(request), names, sent, texts)


def _reject(
    part: _Part,
    settings: Settings,
    failed: dict[str, str],
    never: dict[str, str],
) -> None:
    """Add node -> reason, for the nodes that some filter rejects."""
    results, names, sent, _ = part
    if results.do_pass(sent.rows):
        return
    first, filters = results.first_rejecting()
    numbers = first.take(sent.rows)
    for number in np.unique(numbers[numbers >= 0]).tolist():
        host_filter = filters[number]
        rejected = np.flatnonzero(numbers == number).tolist()
        into = failed if may_pass_later(host_filter) else never
        text = ''
        for at in rejected[:_MAX_REASONS]:
            row = int(sent.rows[at])
            key = host_filter.name, row
            if key not in results.reasons:
                reason = host_filter.reason(
                    sent.table, row, results.request, settings
                )
                text = f'{host_filter.name}: {reason}'[:_MAX_REASON_LENGTH]
                results.reasons[key] = text.replace('%', ' percent')
            text = into[names[at]] = results.reasons[key]
        into.update(
            dict.fromkeys([names[at] for at in rejected[_MAX_REASONS:]], text)
        )


def _written(names: list[str], values: Ints) -> Scores:
    return Scores(names, values, wire.score_list(names, values.tolist()))
