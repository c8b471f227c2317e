"""Where pods are and where they probably go, for the evaluator of nodes.

:class:`PodPlaces` is used by the threads that hold the evaluator's lock; what
it counts in, a :class:`PodUse`, by those that follow an API server as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.columns.dictionary import Floats, Ints, Rows
from scheduler_service.kube import pod_load
from scheduler_service.kube.pod_load import Asking, LoadScoring, NodeRows
from scheduler_service.kube.pod_use import PlacedPod, PodUse
from scheduler_service.kube.usage import Usage
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import ColumnWeigher, Weigher

_LONGEST_REASON = 1000


@dataclasses.dataclass(slots=True)
class PodPlaces:
    """What pods use, and how scores and room follow from it.

    :ivar use: of the pods of one cluster
    :ivar scoring: how much the load of nodes counts
    :ivar assuming: whether to assume where pods go; only where something
        says later where they went
    :ivar binding: whether pods were bound here: only then a pod takes room
        that is only assumed. Who binds knows soon where it went; nobody else
        may refuse others for a pod that may never be placed
    :ivar waiting: whether pods that ask for what nobody else counts are
        refused until all pods were listed once
    """

    use: PodUse
    scoring: LoadScoring
    domain: str
    settings: Settings
    assuming: bool = False
    binding: bool = False
    waiting: bool = False
    # The pod that was asked about last, and its uid.
    _last: tuple[Any, str] | None = None
    _numbers: tuple[Mapping[str, int], Rows] | None = None

    def asking(self, pod: Any, takes: Usage) -> Asking:
        """Return what has to be known of a pod.

        :param takes: what it takes of a node
        :raises WireError: the pod cannot be read
        :raises ServiceBusy: it is not known yet what pods use, and the pod
            asks for what nobody else counts
        """
        self.use.forget_old()
        if takes.classes and self.waiting and not self.use.complete:
            raise errors.ServiceBusy(
                'The pods of the cluster are not listed yet'
            )
        if self._last is None or self._last[0] is not pod:
            self._last = pod, uid_of(pod)
        return Asking(self._last[1], takes)

    def numbers_of(self, rows: Mapping[str, int]) -> Rows:
        """Return the numbers of the nodes of all rows of a table, int64[n].

        :param rows: node name -> row
        """
        if self._numbers is None or self._numbers[0] is not rows:
            numbers = np.zeros(max(rows.values(), default=-1) + 1, np.int64)
            numbers[list(rows.values())] = self.use.numbers_of(list(rows))
            self._numbers = rows, numbers
        return self._numbers[1]

    def full(
        self, sent: NodeRows, names: Sequence[str], asking: Asking
    ) -> dict[str, str]:
        """Return node -> reason, for nodes without room for the pod."""
        if not asking.usage.classes:
            return {}
        found = pod_load.shortages(self.use, sent, asking, self.binding)
        return {
            names[at]: f'free_resources: {text}'[:_LONGEST_REASON]
            for at, text in found.items()
        }

    def scores(
        self,
        parts: Sequence[NodeRows],
        weights: Sequence[Floats | None],
        asking: Asking,
    ) -> Ints:
        """Return scores of 0 to 10, int64[m].

        :param weights: of each part's nodes; None: all of them are 0
        """
        distances = None
        if self.use.complete or not self.assuming:
            distances = self.scoring.distances(
                self.use, parts, asking, self.settings
            )
        total = None
        if distances is None or any(one is not None for one in weights):
            zeros = [np.zeros(len(one.rows)) for one in parts]
            total = np.concatenate(
                [
                    nothing if weight is None else weight
                    for weight, nothing in zip(weights, zeros, strict=True)
                ]
            )
        return self.scoring.scores(distances, total, self.assuming)

    def assume(self, asking: Asking, node: str) -> None:
        """Assume that the pod goes to a node."""
        if self.assuming and asking.uid:
            self.use.assume(PlacedPod(asking.uid, node, asking.usage))

    def claim(self, uid: str, node: str, sent: NodeRows | None) -> bool:
        """Count a pod on the node that it is about to be bound to.

        :param sent: the node; None: it is not known, so its room is not
        :return: whether that is to be taken back if it is not bound
        :raises Conflict: pods that were placed meanwhile took the room
        """
        self.binding = True
        known = self.use.usage_of(uid) if self.assuming else None
        if known is None or self.use.is_seen(uid):
            return False
        if sent is not None:
            full = self.full(sent, [node], Asking(uid, known))
            if full:
                raise errors.Conflict(f'{node}: {full[node]}')
        self.use.see(PlacedPod(uid, node, known))
        return True


def uid_of(pod: Any) -> str:
    """Return the uid of a pod; empty if it has none.

    :raises WireError: it is not a pod
    """
    metadata = wire.field(pod, 'metadata', dict) or {}
    uid: str = wire.field(metadata, 'uid', str)
    return uid


# Weighers of load that are replaced for pods, and the class that they weigh.
_BY_CLASS = {
    'CPUWeigher': 'VCPU',
    'RAMWeigher': 'MEMORY_MB',
    'DiskWeigher': 'DISK_GB',
}


def looks_at_load(weigher: Weigher) -> bool:
    """Whether a weigher looks at what is in use on hosts."""
    return isinstance(weigher, ColumnWeigher)


def load_scoring(
    weighers: Sequence[Weigher], settings: Settings
) -> LoadScoring:
    """Return how much load counts, by the multipliers of weighers.

    :param weighers: those that are configured
    """
    multipliers = {
        _BY_CLASS[one.name]: one.sign * one.multiplier(settings)
        for one in weighers
        if one.name in _BY_CLASS
    }
    return LoadScoring(multipliers)
