"""Pods as requests, remembered by what they ask for.

:class:`PodRequests` belongs to the threads that hold the evaluator's lock.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from scheduler_service import extender_wire as wire
from scheduler_service.kube import pod_keys, reading
from scheduler_service.kube.sized_cache import SizedCache
from scheduler_service.kube.usage import Usage, usage_of
from scheduler_service.model import Request

_MOST = 4096
# Characters of their keys; what is kept of a pod is some times as large.
_MOST_SIZE = 8 * 2**20
_MOST_CLASSES = 64


class Asked(NamedTuple):
    """What a pod asks for.

    :ivar key: the same for pods with one request; None: not to be remembered
    :ivar usage: what the pod takes of a node
    """

    key: str | None
    request: Request
    usage: Usage


class PodRequests:
    """Makes requests of pods.

    :param domain: of the annotations, labels and resources that are ours
    """

    def __init__(self, domain: str) -> None:
        self._domain = domain
        self._known = SizedCache[str, Asked](_MOST, _MOST_SIZE)
        # The pod that was asked about last, and what it asks for.
        self._last: tuple[Any, Asked] | None = None

    def of(self, pod: Any) -> Asked:
        """Return what a pod asks for.

        :param pod: a v1 Pod, parsed; it must not be written to
        :raises WireError: it cannot be read
        """
        last = self._last
        if last is not None and last[0] is pod:
            return last[1]
        asked = self._asked(pod)
        self._last = pod, asked
        return asked

    def _asked(self, pod: Any) -> Asked:
        key = pod_keys.key_of(pod, self._domain)
        known = None if key is None else self._known.get(key)
        if known is not None:
            return known
        request = reading.pod_request(pod, self._domain)
        asked = Asked(key, request, usage_of(pod, self._domain))
        classes = len(asked.usage.classes)
        if classes > _MOST_CLASSES:
            raise wire.WireError(
                f'the pod asks for {classes} extended resources; at most '
                f'{_MOST_CLASSES}'
            )
        if key is not None:
            self._known.put(key, asked, len(key))
        return asked
