"""Counts what the pods of a cluster use. Used by the thread that follows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from scheduler_service.engine.pod_use import PlacedPod, PodUse
from scheduler_service.extender import wire
from scheduler_service.extender.usage import UsageReader

LOG = logging.getLogger(__name__)
# Of all pods those that take something of a node.
SELECTOR = 'spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed'


class PodSink:
    """Tells a :class:`PodUse` where pods are."""

    def __init__(self, use: PodUse, domain: str) -> None:
        self._use = use
        self._usage = UsageReader(domain)

    def replace(self, objects: Sequence[dict[str, Any]]) -> None:
        """Count these and no others."""
        placed = []
        for one in objects:
            try:
                placed.append(self._placed(one))
            except wire.WireError as fault:
                LOG.warning('A pod is not counted: %s', fault)
        self._use.replace(placed)

    def put(self, one: dict[str, Any]) -> None:
        """Count a pod.

        :raises WireError: it cannot be read
        """
        self._use.see(self._placed(one))

    def remove(self, one: dict[str, Any]) -> None:
        """Count a pod no more."""
        self._use.remove(_uid(one))

    def set_lost(self, lost: bool) -> None:
        """Keep what is assumed while pods are not followed."""
        self._use.set_stale(lost)

    def _placed(self, pod: dict[str, Any]) -> PlacedPod:
        node = wire.field(wire.field(pod, 'spec', dict), 'nodeName', str)
        return PlacedPod(_uid(pod), node, self._usage.of(pod))


def _uid(pod: dict[str, Any]) -> str:
    uid: str = wire.field(wire.field(pod, 'metadata', dict), 'uid', str)
    return uid
