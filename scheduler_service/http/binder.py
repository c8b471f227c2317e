"""Binds pods to nodes at an API server."""

from __future__ import annotations

import pathlib
from typing import Any
from urllib import parse

import urllib3

from scheduler_service import errors
from scheduler_service.extender import wire

_WAIT_S = 10.0


class Binder:
    """An API server, and our right to bind there.

    :param url: of the server
    :param token_file: with a bearer token, read anew for each call
    :param ca_file: of its certificate; None: the system's
    """

    def __init__(
        self, url: str, token_file: str | None, ca_file: str | None
    ) -> None:
        self._url = url.rstrip('/')
        self._token_file = token_file
        self._pool = urllib3.PoolManager(
            ca_certs=ca_file, maxsize=8, retries=False, timeout=_WAIT_S
        )

    def bind(self, space: str, name: str, uid: str, node: str) -> None:
        """Bind a pod; one that is on the node already is done.

        :raises ExtenderFailed: it is not bound, and why
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
        status, said = self._call('POST', f'{pod}/binding', binding)
        if status in (200, 201):
            return
        if status == 409 and self._is_on(pod, uid, node):
            return
        raise errors.ExtenderFailed(
            f'The API server does not bind {space}/{name} to {node}: '
            f'{_message(said) or status}',
            status=status,
        )

    def _is_on(self, pod: str, uid: str, node: str) -> bool:
        status, found = self._call('GET', pod, None)
        if status != 200:
            return False
        spec = wire.field(found, 'spec', dict) or {}
        metadata = wire.field(found, 'metadata', dict) or {}
        same = not uid or wire.field(metadata, 'uid', str) == uid
        return bool(same and wire.field(spec, 'nodeName', str) == node)

    def _call(self, method: str, path: str, document: Any) -> tuple[int, Any]:
        headers = {'Content-Type': 'application/json'}
        try:
            if self._token_file:
                token = pathlib.Path(self._token_file).read_text().strip()
                headers['Authorization'] = f'Bearer {token}'
            answer = self._pool.request(
                method,
                self._url + path,
                body=None if document is None else wire.encode(document),
                headers=headers,
            )
            return answer.status, wire.decode(answer.data or b'null')
        except (urllib3.exceptions.HTTPError, OSError) as fault:
            raise errors.ExtenderFailed(
                f'The API server does not answer: {fault}'
            ) from None
        except wire.WireError:
            return answer.status, None


def _message(said: Any) -> str:
    found = said.get('message') if isinstance(said, dict) else None
    return str(found or '')[:500]
