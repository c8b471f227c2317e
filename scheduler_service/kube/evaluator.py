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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.columns.dictionary import Ints, Rows
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.engine.table_copies import TableCopy
from scheduler_service.kube import pod_places
from scheduler_service.kube.pod_load import LoadScoring, NodeRows
from scheduler_service.kube.pod_places import PodPlaces
from scheduler_service.kube.pod_rejections import Rejections
from scheduler_service.kube.pod_requests import Asked, PodRequests
from scheduler_service.kube.score_texts import ScoreTexts
from scheduler_service.kube.stored_nodes import StoredHosts
from scheduler_service.kube.unknown_nodes import SentNodes, UnknownNodes
from scheduler_service.pipeline import HostPipeline
from scheduler_service.pipeline.evaluation import Evaluation


class Nodes:
    """The nodes of one call.

    :ivar names: in the order they were sent
    :ivar document: gives a v1 Node by its name, as ``msgspec.Raw`` or parsed;
        None where only names were sent
    :ivar judged: for the evaluator: what the call before found
    """

    __slots__ = ('document', 'judged', 'names')

    def __init__(
        self,
        names: list[str],
        document: Callable[[str], Any] | None = None,
    ) -> None:
        self.names = names
        self.document = document
        self.judged: _Judged | None = None

    def rows_in(self, copy: TableCopy) -> Rows | None:
        """Return the rows of the nodes, int64[m].

        None if one is not there, or named twice.
        """
        try:
            rows = _looked_up(self.names, copy.packed_rows)
        except KeyError:
            return None
        return rows if _distinct(rows, len(copy.rows)) else None


def _looked_up(names: list[str], packed: Mapping[str, bytes]) -> Rows:
    """Return the rows of nodes; joining bytes is quicker than numbers are.

    :param packed: node name -> its row, as the bytes of an int64
    :raises KeyError: a name is not there
    """
    found: Sequence[bytes]
    if len(names) > 1:
        found = operator.itemgetter(*names)(packed)
    else:
        found = [packed[name] for name in names]
    return np.frombuffer(b''.join(found), np.int64)


def _distinct(rows: Rows, most: int) -> bool:
    """Whether no row is there twice; all are below *most*."""
    seen = np.zeros(most, np.bool_)
    seen[rows] = True
    return int(np.count_nonzero(seen)) == len(rows)


class Verdict(NamedTuple):
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

    evaluation: Evaluation
    names: Sequence[str]
    sent: NodeRows
    texts: ScoreTexts | None = None


class _Judged(NamedTuple):
    """What was found for a pod and nodes, all of which are stored.

    That is found again as long as pod and table are the same.
    """

    asked: Asked
    copy: TableCopy
    parts: list[_Part]


class PodPipeline(NamedTuple):
    """What nodes are judged by for pods.

    :ivar scoring: how much the load of nodes counts
    """

    pipeline: HostPipeline
    scoring: LoadScoring


class PodEvaluator:
    """Filters and scores nodes for pods.

    :param snapshot: gives the newest snapshot, None before the first
    :param places: where pods are, and what follows from it
    :param unknown: what becomes of nodes that the store lacks
    :ivar are_nodes_known: whether anything can be said of nodes
    """

    def __init__(
        self,
        pipeline: HostPipeline,
        snapshot: Callable[[], Snapshot | None],
        places: PodPlaces,
        unknown: UnknownNodes,
    ) -> None:
        self._pipeline = pipeline
        self._lock = threading.Lock()
        self._stored = StoredHosts(pipeline, snapshot)
        self._requests = PodRequests(places.domain)
        self._places = places
        self._others = SentNodes(unknown)
        self.are_nodes_known = unknown.are_known
        # The pod that was filtered last, with the nodes that passed, until
        # they are scored: where it goes is still to be assumed.
        self._unplaced: tuple[Any, Nodes] | None = None

    def use(self, by: PodPipeline) -> None:
        """Evaluate in another way, from the next call on."""
        with self._lock:
            self._pipeline = by.pipeline
            self._stored.use(by.pipeline)
            self._places.scoring = by.scoring
            self._places.settings = by.pipeline.settings

    def filter(self, pod: Any, nodes: Nodes, to_place: bool = True) -> Verdict:
        """Return which nodes pass, and the reasons of the others.

        A node whose object cannot be read fails alone.

        :param to_place: whether the pod goes to one of those that pass
        :raises WireError: the pod cannot be read
        """
        rejections = Rejections()
        failed, never = rejections.failed, rejections.never
        with self._lock:
            asked = self._requests.of(pod)
            asking = self._places.asking(pod, asked.usage)
            self._place_the_last(asking.uid)
            parts, unread = self._parts(asked, nodes)
            failed.update(unread)
            for part in parts:
                rejections.add(
                    part.evaluation,
                    part.sent,
                    part.names,
                    self._pipeline.settings,
                )
                if asking.usage.classes:
                    full = self._places.full(part.sent, part.names, asking)
                    for name, reason in full.items():
                        if name not in never:
                            failed.setdefault(name, reason)
            passed = rejections.passed(nodes.names)
            if self._places.assuming and to_place:
                self._unplaced = pod, Nodes(passed, nodes.document)
        return Verdict(passed, failed, never)

    def prioritize(self, pod: Any, nodes: Nodes) -> Scores:
        """Return scores of 0 to 10; 0 for all nodes if they are equal.

        The pod is assumed to go to the best of them.

        :raises WireError: the pod cannot be read
        """
        with self._lock:
            self._unplaced = None
            return self._prioritize(pod, nodes)

    def _prioritize(self, pod: Any, nodes: Nodes) -> Scores:
        asked = self._requests.of(pod)
        asking = self._places.asking(pod, asked.usage)
        parts, _ = self._parts(asked, nodes)
        if not parts:
            zeros = np.zeros(len(nodes.names), np.int64)
            return _written(nodes.names, zeros)
        weights = [one.evaluation.totals(one.sent.rows) for one in parts]
        values = self._places.scores(
            [one.sent for one in parts],
            weights,
            asking,
        )
        names = parts[0].names
        if len(parts) > 1:
            names = [name for one in parts for name in one.names]
        self._places.assume(asking, names[int(values.argmax())])
        if names is nodes.names:
            texts = parts[0].texts
            if texts is None:
                return _written(nodes.names, values)
            text = texts.write(parts[0].sent.rows, values)
            return Scores(nodes.names, values, text)
        scores = dict.fromkeys(nodes.names, 0)
        scores.update(zip(names, values.tolist(), strict=True))
        return _written(list(scores), np.array(list(scores.values())))

    def _place_the_last(self, instead: str = '') -> None:
        """Assume where the pod goes that was filtered and never scored.

        Either one node was left for it, or nobody asks for scores.

        :param instead: uid of a pod that is filtered now, maybe once more
        """
        if self._unplaced is None:
            return
        pod, nodes = self._unplaced
        self._unplaced = None
        uid = pod_places.uid_of(pod)
        if (
            nodes.names
            and uid != instead
            and not self._places.use.is_seen(uid)
        ):
            # A fault of a weigher is told to whom it concerns.
            with contextlib.suppress(errors.SchedulerError):
                self._prioritize(pod, nodes)

    def claim(self, uid: str, node: str) -> bool:
        """Count a pod on the node that it is about to be bound to.

        :return: whether :meth:`unclaim` is due if it is not bound
        :raises Conflict: pods that were placed meanwhile took the room
        """
        with self._lock:
            last = self._unplaced
            if last is not None and pod_places.uid_of(last[0]) == uid:
                self._place_the_last()
            sent = None
            copy = self._stored.newest()
            if copy is not None and node in copy.rows:
                rows = np.array([copy.rows[node]], np.int64)
                sent = NodeRows(
                    copy.table, rows, self._places.use.numbers_of([node])
                )
            return self._places.claim(uid, node, sent)

    def unclaim(self, uid: str) -> None:
        """Count a pod no more that was not bound."""
        self._places.use.remove(uid)

    def _parts(
        self, asked: Asked, nodes: Nodes
    ) -> tuple[list[_Part], dict[str, str]]:
        """Return the nodes by table, and name -> reason of the others.

        Stored nodes are in a copy of the newest table, the others in a table
        made of their documents.
        """
        others: list[str] = nodes.names
        parts: list[_Part] = []
        copy = self._stored.newest()
        if copy is not None:
            known = nodes.judged
            if known and known.copy is copy and known.asked is asked:
                return known.parts, {}
            names, rows = nodes.names, nodes.rows_in(copy)
            if rows is None:
                stored = {
                    name: copy.rows[name]
                    for name in nodes.names
                    if name in copy.rows
                }
                others = [name for name in nodes.names if name not in stored]
                names = list(stored)
                rows = np.array(list(stored.values()), np.int64)
            else:
                others = []
            if len(rows):
                numbers = self._places.numbers_of(copy.rows).take(rows)
                evaluation = self._stored.evaluation(asked)
                sent = NodeRows(copy.table, rows, numbers)
                texts = copy.table.topology.memoize(
                    'score texts', functools.partial(ScoreTexts, copy.names)
                )
                parts.append(_Part(evaluation, names, sent, texts))
        if not others:
            if copy is not None:
                nodes.judged = _Judged(asked, copy, parts)
            return parts, {}
        table, listed, unread = self._others.table_of(
            others, nodes.document, asked.usage.classes
        )
        if listed:
            evaluation = self._pipeline.evaluate(table, asked.request)
            numbers = self._places.use.numbers_of(listed, passing=True)
            sent = NodeRows(table, np.arange(len(listed)), numbers)
            parts.append(_Part(evaluation, listed, sent))
        return parts, unread


def _written(names: list[str], values: Ints) -> Scores:
    return Scores(names, values, wire.score_list(names, values.tolist()))


def preemption_candidates(
    evaluator: PodEvaluator, pod: Any, victims: Mapping[str, wire.Victims]
) -> list[str]:
    """Return the nodes of a preempt request where evicting pods may help.

    :raises WireError: the pod cannot be read
    """
    verdict = evaluator.filter(pod, Nodes(list(victims)), to_place=False)
    return [node for node in victims if node not in verdict.never]
