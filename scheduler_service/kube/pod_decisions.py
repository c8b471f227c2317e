"""Decisions on pods: what the verbs of a kube-scheduler's calls answered.

Any thread may call a :class:`PodDecisions`. A pod's decisions are stored as
those of other requests are: its uid is the request id, its namespace and name
are the id in the caller's log, and those of its group are the global id.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scheduler_service import errors
from scheduler_service.columns.dictionary import Ints
from scheduler_service.kube.pod_reader import Pod
from scheduler_service.model import Placement, Selection
from scheduler_service.model.limits import NAME_LENGTH
from scheduler_service.store.records.decision_list import POD_KIND
from scheduler_service.store.records.decisions import Decision

# The best nodes that a decision has.
_BEST = 10
# Pods whose groups are kept for the call that binds them.
_MAX_GROUPS = 10_000


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
