"""Binds pods to nodes at an API server.

A binder may be used by all threads of the HTTP server.
"""

from __future__ import annotations

import time
from typing import Any
from urllib import parse

import urllib3

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.kube.api import ApiLost, ApiServer

# The least time for a call, in seconds, also after the deadline.
_LEAST_S = 0.1


class Binder:
    """Binds pods by a client of an API server.

    :param timeout: seconds within which a pod has to be bound
    """

    def __init__(self, client: ApiServer, timeout: float) -> None:
        self._client = client
        self._timeout = timeout

    def bind(self, space: str, name: str, uid: str, node: str) -> None:
        """Bind a pod to a node, unless it is bound there already.

        :param space: the pod's namespace
        :raises ExtenderFailed: the API server refuses, or is unreachable
        """
        pod = (
            f'/api/v1/namespaces/{parse.quote(space, safe="")}'
            f'/pods/{parse.quote(name, safe="")}'
        )
        binding = {
            'apiVersion': 'v1',
            'kind': 'Binding',
            'metadata': {'name': name, 'namespace': space, 'uid': uid},
            'target': {'apiVersion': 'v1', 'kind': 'Node', 'name': node},
        }
        deadline = time.monotonic() + self._timeout
        status, reply = self._call('POST', f'{pod}/binding', binding, deadline)
        if status in (200, 201):
            return
        if status == 409 and self._is_on(pod, uid, node, deadline):
            return
        raise errors.ExtenderFailed(
            f'The API server did not bind {space}/{name} to {node}: '
            f'{_message(reply) or status}',
            status=status,
        )

    def _is_on(self, pod: str, uid: str, node: str, deadline: float) -> bool:
        status, document = self._call('GET', pod, None, deadline)
        if status != 200:
            return False
        spec = wire.exact_field(document, 'spec', dict) or {}
        metadata = wire.exact_field(document, 'metadata', dict) or {}
        same = not uid or wire.exact_field(metadata, 'uid', str) == uid
        return bool(same and wire.exact_field(spec, 'nodeName', str) == node)

    def _call(
        self, method: str, path: str, document: Any, deadline: float
    ) -> tuple[int, Any]:
        """Return status and document of a reply.

        :param deadline: monotonic time
        """
        left = max(deadline - time.monotonic(), _LEAST_S)
        try:
            response = self._client.call(
                method,
                path,
                urllib3.Timeout(total=left),
                body=None if document is None else wire.encode(document),
            )
        except ApiLost as fault:
            raise errors.ExtenderFailed(
                f'The API server is unreachable: {fault}'
            ) from None
        try:
            return response.status, wire.decode(response.data or b'null')
        except wire.WireError:
            return response.status, None


def _message(reply: Any) -> str:
    text = reply.get('message') if isinstance(reply, dict) else None
    return str(text or '')[:500]
