"""Binds pods to nodes at an API server.

A binder may be used by all threads of the HTTP server.
"""

from __future__ import annotations

import pathlib
import time
from typing import Any
from urllib import parse

import urllib3

from scheduler_service import errors, tls_verify
from scheduler_service import extender_wire as wire

_MOST_KEPT = 8
# A call is given so many seconds even if the one before it took too long.
_LEAST_S = 0.1


class Binder:
    """A client of an API server.

    :param url: of the server
    :param token_file: path of a bearer token, read again for each call
    :param ca_file: path of the CA of its certificate; None: the system's CAs
    :param timeout: seconds within which a pod has to be bound
    """

    def __init__(
        self,
        url: str,
        token_file: str | None,
        ca_file: str | None,
        timeout: float,
    ) -> None:
        self._url = url.rstrip('/')
        self._token_file = token_file
        self._pool = urllib3.PoolManager(
            ssl_context=tls_verify.of_server(has_ca=ca_file is not None),
            ca_certs=ca_file,
            maxsize=_MOST_KEPT,
            retries=False,
        )
        self._timeout = timeout

    def bind(self, space: str, name: str, uid: str, node: str) -> None:
        """Bind a pod to a node; a pod that is bound there already is fine.

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
        spec = wire.field(document, 'spec', dict) or {}
        metadata = wire.field(document, 'metadata', dict) or {}
        same = not uid or wire.field(metadata, 'uid', str) == uid
        return bool(same and wire.field(spec, 'nodeName', str) == node)

    def _call(
        self, method: str, path: str, document: Any, deadline: float
    ) -> tuple[int, Any]:
        """Return status and document of a reply.

        :param deadline: monotonic time
        """
        left = max(deadline - time.monotonic(), _LEAST_S)
        headers = {'Content-Type': 'application/json'}
        try:
            if self._token_file:
                token = pathlib.Path(self._token_file).read_text().strip()
                headers['Authorization'] = f'Bearer {token}'
            response = self._pool.request(
                method,
                self._url + path,
                body=None if document is None else wire.encode(document),
                headers=headers,
                timeout=urllib3.Timeout(total=left),
            )
            return response.status, wire.decode(response.data or b'null')
        except (urllib3.exceptions.HTTPError, OSError) as fault:
            raise errors.ExtenderFailed(
                f'The API server is unreachable: {fault}'
            ) from None
        except wire.WireError:
            return response.status, None


def _message(reply: Any) -> str:
    text = reply.get('message') if isinstance(reply, dict) else None
    return str(text or '')[:500]
