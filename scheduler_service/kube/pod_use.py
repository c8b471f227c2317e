"""What pods use on nodes, both seen and assumed pods.

Any thread may call a :class:`PodUse`. Threads that follow an API server
report the nodes of pods through a :class:`PodSink`; the evaluator assumes the
node of each pod that it scores, until the pod is seen.
"""

from __future__ import annotations

import collections
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from scheduler_service import extender_wire as wire
from scheduler_service.columns.dictionary import Floats, Rows
from scheduler_service.kube import pod_reader
from scheduler_service.kube.pod_book import PodBook
from scheduler_service.kube.pod_reader import PlacedPod, PodReader, PodUsage
from scheduler_service.model import STANDARD_CLASSES

LOG = logging.getLogger(__name__)
# Pods that use resources of a node.
SELECTOR = 'spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed'
# Pods for which a kube-scheduler evicts others.
NOMINATED = 'spec.nodeName=,status.nominatedNodeName!='
_FIRST_NODES = 1024
# In this time a claim is released whose pod is gone, in seconds.
_RELEASED_S = 10.0
# The number of nodes on which no pod was counted yet.
_NO_PODS = 0


class _Counted(NamedTuple):
    """A pod that is counted.

    :ivar number: of its node
    :ivar until: monotonic time until which it is assumed, infinite: it is
        nominated; None: it was seen
    """

    number: int
    usage: PodUsage
    until: float | None
    priority: int

    @property
    def amounts(self) -> dict[str, float]:
        """What it takes: load alone, unless it was seen."""
        return self.usage.amounts if self.until is None else self.usage.load


class PodUse:
    """Use by node, in arrays, and the pods that it consists of.

    Each node has a number, which never changes. Daemons do not share assumed
    pods.

    :param assume_seconds: how long a pod is assumed; 0: not at all
    :param clock: monotonic seconds
    :param on_outcome: called for each assumed pod: ``there`` if it was seen
        on that node, ``elsewhere`` on another, ``expired`` if not in time
    :ivar complete: whether all pods were listed at least once
    """

    def __init__(
        self,
        assume_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        on_outcome: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._assume_seconds = assume_seconds
        self._clock = clock
        self._on_outcome = on_outcome
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._width = _FIRST_NODES
        self._load: Floats = np.zeros((len(STANDARD_CLASSES), self._width))
        # By class; the standard classes are rows of the array above.
        self._used = dict(zip(STANDARD_CLASSES, self._load, strict=True))
        self._pods: dict[str, _Counted] = {}
        # Assumed pods, the oldest first.
        self._assumed: dict[str, float] = {}
        self._nominated: dict[str, _Counted] = {}
        # Pods that left, which the book may still have, and until when.
        self._left: collections.deque[tuple[float, str, _Counted]] = (
            collections.deque()
        )
        # Before this time no assumed pod expires.
        self._due = math.inf
        self._recent: set[str] | None = None
        # Pods that are being bound: a list may lack them until they are.
        self._binding: set[str] = set()
        self.complete = False
        self._stale = False

    def replace(self, pods: Iterable[PlacedPod]) -> None:
        """Replace all seen pods.

        Assumed pods stay until they expire; pods that were seen since
        :meth:`begin_listing` stay as well.
        """
        placed = {pod.uid: pod for pod in pods}
        with self._lock:
            recent = self._recent or self._binding
            gone = [
                uid
                for uid, counted in self._pods.items()
                if counted.until is None
                and uid not in placed
                and uid not in recent
            ]
            self._recent = None
            for uid in gone:
                self._leave(uid)
            for pod in placed.values():
                self._put(pod, None)
            self.complete, self._stale = True, False

    def begin_listing(self) -> None:
        """Note which pods are seen before :meth:`replace`.

        The list that replaces all pods may be older than they are.
        """
        with self._lock:
            self._recent = set(self._binding)

    def see(self, pod: PlacedPod, binding: bool = False) -> None:
        """Count a pod where it was seen, and nowhere else.

        :param binding: it is about to be bound there; :meth:`end_binding` is
            due
        """
        with self._lock:
            self._put(pod, None)
            if self._recent is not None:
                self._recent.add(pod.uid)
            (self._binding.add if binding else self._binding.discard)(pod.uid)

    def end_binding(self, uid: str, bound: bool) -> None:
        """Note that a pod was bound, or drop it unless it was seen."""
        with self._lock:
            if uid in self._binding and not bound:
                self._drop(uid)
            self._binding.discard(uid)

    def remove(self, uid: str) -> None:
        with self._lock:
            self._leave(uid)

    def _leave(self, uid: str) -> None:
        pod = self._pods.get(uid)
        if pod is not None and pod.until is None and pod.usage.is_claimed:
            self._left.append((self._clock() + _RELEASED_S, uid, pod))
        self._drop(uid)

    def left(self, name: str, numbers: Rows) -> Floats:
        """Return what pods used that left a moment ago, float64[m].

        The book may have their claims still. A kube-scheduler tries those
        that wait as soon as a pod is gone, and not again for minutes.
        """
        with self._lock:
            now = self._clock()
            while self._left and self._left[0][0] < now:
                self._left.popleft()
            return self._sum((pod for *_, pod in self._left), name, numbers)

    def left_from(self, numbers: Rows) -> list[str]:
        """Return the uids of pods that left some nodes a moment ago."""
        nodes = set(numbers.tolist())
        with self._lock:
            return [uid for _, uid, pod in self._left if pod.number in nodes]

    def _sum(
        self, pods: Iterable[_Counted], name: str, numbers: Rows
    ) -> Floats:
        """Return what some pods use of a class on nodes, float64[m]."""
        amounts: Floats = np.zeros(self._width)
        for pod in pods:
            amounts[pod.number] += pod.usage.amounts.get(name, 0.0)
        return amounts.take(numbers)

    def nominate(self, pod: PlacedPod) -> None:
        """Count a pod on its nominated node, unless it was seen."""
        with self._lock:
            if not self.is_seen(pod.uid):
                self._put(pod, math.inf)

    def end_nomination(self, uid: str) -> None:
        """Stop counting a nominated pod; one that was seen still counts."""
        with self._lock:
            if uid in self._nominated:
                self._drop(uid)

    def nominate_only(self, pods: Iterable[PlacedPod]) -> None:
        """Replace all nominated pods."""
        with self._lock:
            for uid in list(self._nominated):
                self._drop(uid)
            for pod in pods:
                if not self.is_seen(pod.uid):
                    self._put(pod, math.inf)

    def assume(self, pod: PlacedPod) -> None:
        """Count the load of a pod on its likely node, until it is seen.

        A pod that was seen, or is nominated, stays where it is.
        """
        if not self._assume_seconds:
            return
        with self._lock:
            if pod.uid not in self._pods or pod.uid in self._assumed:
                self._put(pod, self._clock() + self._assume_seconds)

    def set_stale(self, stale: bool) -> None:
        """Note whether placed pods are not followed at the moment.

        Meanwhile no assumed pod expires.
        """
        with self._lock:
            self._stale = stale

    def forget_old(self) -> None:
        """Stop counting pods that were assumed too long ago."""
        now = self._clock()
        if now < self._due:
            return
        with self._lock:
            if self._stale:
                return
            self._due = math.inf
            while self._assumed:
                uid, until = next(iter(self._assumed.items()))
                if until > now:
                    self._due = until
                    break
                self._drop(uid)
                self._on_outcome('expired')

    def __contains__(self, name: str) -> bool:
        """Whether any pod was counted under a name."""
        return name in self._used

    def is_binding(self, uid: str) -> bool:
        """Whether a pod is being bound, and was not seen yet."""
        return uid in self._binding

    def is_seen(self, uid: str) -> bool:
        """Whether a pod was seen on a node, or is being bound to one."""
        counted = self._pods.get(uid)
        return counted is not None and counted.until is None

    def count(self) -> tuple[int, int]:
        """Return how many pods were seen, and how many are assumed."""
        return len(self._pods) - len(self._assumed), len(self._assumed)

    def numbers_of(self, nodes: Sequence[str], passing: bool = False) -> Rows:
        """Return the numbers of nodes, int64[m].

        :param passing: the numbers are not kept, so that nodes without pods
            need none of their own
        """
        with self._lock:
            if passing:
                existing = self._numbers
                numbers = [existing.get(name, _NO_PODS) for name in nodes]
            else:
                numbers = [self._number(name) for name in nodes]
        return np.array(numbers, np.int64)

    def used(
        self,
        name: str,
        numbers: Rows,
        without: str = '',
        priority: float = math.inf,
    ) -> Floats:
        """Return what is used of a class on some nodes, float64[m].

        Assumed pods do not count.

        :param without: uid of a pod that does not count
        :param priority: nominated pods count from this one on
        """
        with self._lock:
            array = self._used.get(name)
            amounts: Floats = (
                np.zeros(len(numbers))
                if array is None
                else array.take(numbers)
            )
            own = self._pods.get(without)
            if own is not None:
                less = own.amounts.get(name, 0.0)
                amounts[numbers == own.number] -= less
            nominated = [
                pod
                for uid, pod in self._nominated.items()
                if uid != without and pod.priority >= priority
            ]
            if nominated:
                amounts += self._sum(nominated, name, numbers)
        return amounts

    def load(self, numbers: Rows, without: str = '') -> Floats:
        """Return what is used of each standard class, float64[3, m].

        :param without: uid of a pod that does not count
        """
        with self._lock:
            load: Floats = self._load.take(numbers, axis=1)
            own = self._pods.get(without)
        if own is not None:
            amounts = own.usage.load
            at = np.flatnonzero(numbers == own.number)
            if len(at):
                for row, name in zip(load, STANDARD_CLASSES, strict=True):
                    row[at] -= amounts.get(name, 0.0)
        return load

    def _number(self, node: str) -> int:
        number = self._numbers.get(node)
        if number is None:
            number = self._numbers[node] = len(self._numbers) + 1
            if number >= self._width:
                self._widen()
        return number

    def _widen(self) -> None:
        more = self._width
        self._width *= 2
        self._load = np.pad(self._load, ((0, 0), (0, more)))
        self._used = {
            name: np.pad(array, (0, more))
            for name, array in self._used.items()
        }
        self._used.update(zip(STANDARD_CLASSES, self._load, strict=True))

    def _put(self, pod: PlacedPod, until: float | None) -> None:
        number = self._number(pod.node)
        last = self._pods.get(pod.uid)
        counted = _Counted(number, pod.usage, until, pod.priority)
        if last == counted:
            return
        if until is None and last is not None and pod.uid in self._assumed:
            self._on_outcome('there' if last.number == number else 'elsewhere')
        self._drop(pod.uid)
        self._add(counted, 1.0)
        self._pods[pod.uid] = counted
        if until == math.inf:
            self._nominated[pod.uid] = counted
        elif until is not None:
            self._assumed[pod.uid] = until
            self._due = min(self._due, until)

    def _drop(self, uid: str) -> None:
        self._assumed.pop(uid, None)
        self._nominated.pop(uid, None)
        counted = self._pods.pop(uid, None)
        if counted is not None:
            self._add(counted, -1.0)

    def _add(self, counted: _Counted, times: float) -> None:
        for name, amount in counted.amounts.items():
            if not amount:
                continue
            array = self._used.get(name)
            if array is None:
                array = self._used[name] = np.zeros(self._width)
            array[counted.number] += times * amount


class PodSink:
    """Reports pods to a :class:`PodUse`, and to a book; for one thread.

    :meth:`put` and :meth:`remove` raise WireError where a pod is invalid.
    """

    def __init__(
        self, use: PodUse, reader: PodReader, book: PodBook | None = None
    ) -> None:
        self._use = use
        self._reader = reader
        self._book = book

    def begin_listing(self) -> None:
        """Note that a list begins, which :meth:`replace` will get."""
        self._use.begin_listing()

    def replace(self, objects: Sequence[msgspec.Raw]) -> None:
        """Count exactly these pods."""
        pods = self._readable(objects)
        self._use.replace(pod for _, pod in pods)
        if self._book is not None:
            self._book.replace(pods)

    def _readable(
        self, objects: Sequence[msgspec.Raw]
    ) -> list[tuple[str, PlacedPod]]:
        placed = []
        for text in objects:
            try:
                placed.append(self._reader.named(text))
            except wire.WireError as fault:
                LOG.warning('A pod is not counted: %s', fault)
        return placed

    def put(self, text: msgspec.Raw) -> None:
        """Count a pod."""
        name, pod = self._reader.named(text)
        self._use.see(pod)
        if self._book is not None:
            self._book.put(name, pod)

    def remove(self, text: msgspec.Raw) -> None:
        """Stop counting a pod."""
        pod = pod_reader.read(text)
        self._use.remove(pod.metadata.uid)
        if self._book is not None:
            self._book.remove(pod.metadata.uid, pod.spec.nodeName)

    def set_lost(self, lost: bool) -> None:
        """Keep assumed pods while pods are not followed."""
        self._use.set_stale(lost)
        if self._book is not None:
            self._book.is_lost = lost


class NominationSink(PodSink):
    """Reports nominated pods, until they are placed, deleted, or wait."""

    def replace(self, objects: Sequence[msgspec.Raw]) -> None:
        """Count exactly these pods as nominated."""
        self._use.nominate_only(pod for _, pod in self._readable(objects))

    def put(self, text: msgspec.Raw) -> None:
        """Count a pod on its nominated node."""
        self._use.nominate(self._reader.placed(text))

    def remove(self, text: msgspec.Raw) -> None:
        self._use.end_nomination(pod_reader.read(text).metadata.uid)

    def set_lost(self, lost: bool) -> None:
        """Do nothing: nominations stay as they were read last."""
