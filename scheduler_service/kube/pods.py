"""Counts what the pods of a cluster use. Used by the thread that follows."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from scheduler_service import extender_wire as wire
from scheduler_service.kube.placed import PlacedPodReader, uid_of
from scheduler_service.kube.pod_use import PodUse

LOG = logging.getLogger(__name__)
# Of all pods those that take something of a node.
SELECTOR = 'spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed'


class PodSink:
    """Tells a :class:`PodUse` where pods are."""

    def __init__(self, use: PodUse, domain: str) -> None:
        self._use = use
        self._reader = PlacedPodReader(domain)

    def begin_listing(self) -> None:
        """Hear that what is taken next is listed from now on."""
        self._use.begin_listing()

    def replace(self, objects: Sequence[msgspec.Raw]) -> None:
        """Count these and no others."""
        placed = []
        for one in objects:
            try:
                placed.append(self._reader.read(one))
            except wire.WireError as fault:
                LOG.warning('A pod is not counted: %s', fault)
        self._use.replace(placed)

    def put(self, one: msgspec.Raw) -> None:
        """Count a pod.

        :raises WireError: it cannot be read
        """
        self._use.see(self._reader.read(one))

    def remove(self, one: msgspec.Raw) -> None:
        """Count a pod no more.

        :raises WireError: it cannot be read
        """
        self._use.remove(uid_of(one))

    def set_lost(self, lost: bool) -> None:
        """Keep what is assumed while pods are not followed."""
        self._use.set_stale(lost)
