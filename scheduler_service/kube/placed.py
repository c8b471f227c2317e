"""Reads placed pods as an API server writes them, and no more than counts.

A pod has some kilobytes, of which what it takes is a few dozen bytes. Most
pods take what others take, so that is worked out once for each kind.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec

from scheduler_service import extender_wire as wire
from scheduler_service.kube.pod_use import PlacedPod
from scheduler_service.kube.usage import Usage, usage_of

_MOST_KNOWN = 4096
_NOTHING = msgspec.Raw(b'null')


class _Metadata(msgspec.Struct, gc=False):
    uid: str = ''
    annotations: dict[str, str] | None = None


class _Container(msgspec.Struct, gc=False):
    resources: msgspec.Raw = _NOTHING
    restartPolicy: str | None = None


class _Spec(msgspec.Struct, gc=False):
    nodeName: str = ''
    containers: list[_Container] | None = None
    initContainers: list[_Container] | None = None
    resources: msgspec.Raw = _NOTHING
    overhead: msgspec.Raw = _NOTHING


class _Pod(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


_read = msgspec.json.Decoder(_Pod).decode


class PlacedPodReader:
    """Used by one thread at a time.

    :param domain: of the annotations and resources that are ours
    """

    def __init__(self, domain: str) -> None:
        self._domain = domain
        self._request = f'{domain}/request'
        self._known: dict[Hashable, Usage] = {}

    def read(self, text: msgspec.Raw) -> PlacedPod:
        """Return where a pod is, and what it takes there.

        :param text: JSON of a v1 Pod
        :raises WireError: it cannot be read
        """
        pod = _parsed(text)
        key = self._key(pod)
        usage = self._known.get(key)
        if usage is None:
            usage = usage_of(wire.decode(text), self._domain)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = usage
        return PlacedPod(pod.metadata.uid, pod.spec.nodeName, usage)

    def _key(self, pod: _Pod) -> Hashable:
        """Return what all that a pod takes follows from."""
        spec = pod.spec
        annotations = pod.metadata.annotations or {}
        return (
            annotations.get(self._request),
            _resources(spec.containers),
            _resources(spec.initContainers),
            bytes(spec.resources),
            bytes(spec.overhead),
        )


def uid_of(text: msgspec.Raw) -> str:
    """Return the uid of a pod.

    :raises WireError: it cannot be read
    """
    return _parsed(text).metadata.uid


def _parsed(text: msgspec.Raw) -> _Pod:
    try:
        return _read(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise wire.WireError(f'pod: {fault}') from None


def _resources(containers: list[_Container] | None) -> Any:
    return tuple(
        (bytes(one.resources), one.restartPolicy) for one in containers or ()
    )
