"""A client of an API server: lists, watches, and bindings of pods.

Any thread may use an :class:`ApiServer`; a watch belongs to the thread that
opened it, but for :meth:`Watch.close`. Only kubeconfig files and service
accounts need the library of Kubernetes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import pathlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib import parse

import msgspec
import urllib3

from scheduler_service import errors, tls_verify
from scheduler_service import extender_wire as wire
from scheduler_service.kube import pod_reader
from scheduler_service.kube.pod_reader import Pod

_GONE = 410
_CONNECT_S = 5.0
_LIST_S = 30.0
_PAGE = 500
_WATCH_S = 30
_MAX_KEPT = 8
# A watch that is silent for this many times its length belongs to a server
# that hangs.
_LONGER = 1.33
# The least time for a call of a bind, in seconds, also after the deadline.
_LEAST_S = 0.1


class ApiLost(Exception):
    """The API server does not answer, or refuses."""


class VersionExpired(Exception):
    """The API server no longer has the changes since a version."""


class Address(NamedTuple):
    """The address of the API server, and our credentials.

    :ivar kubeconfig: path of a file with all of it; None: *url* counts, and
        without that the service account of the pod we run in
    :ivar context: of the file; None: its current context
    """

    kubeconfig: str | None = None
    context: str | None = None
    url: str | None = None
    token_file: str | None = None
    ca_file: str | None = None


class WatchEvent(NamedTuple):
    """A change of one object; with the type ``BOOKMARK`` only a version.

    :ivar object: its JSON
    :ivar version: at which the next watch begins
    """

    type: str
    object: msgspec.Raw
    version: str


class _Metadata(msgspec.Struct, gc=False, rename='camel'):
    resource_version: str = ''


class _Object(msgspec.Struct, gc=False):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _Line(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


class _ListMetadata(msgspec.Struct, rename='camel'):
    resource_version: str
    following: str = msgspec.field(default='', name='continue')


class _Page(msgspec.Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


_read_line = msgspec.json.Decoder(_Line).decode
_read_object = msgspec.json.Decoder(_Object).decode
_read_page = msgspec.json.Decoder(_Page).decode


class ApiServer:
    """A client of an API server.

    Lists and watches raise ApiLost where it does not answer, or refuses.

    :param watch_seconds: after which a watch ends, to be opened again
    :ivar identity: equal if address and credentials are; a token that is read
        again for each call does not count
    :raises ConfigurationError: the library is needed and not installed, or
        the address cannot be used
    """

    def __init__(
        self, address: Address, watch_seconds: int = _WATCH_S
    ) -> None:
        self._watch_seconds = watch_seconds
        self._token_file = address.token_file
        self._credentials: Any = None
        try:
            if address.url and not address.kubeconfig:
                self._url = address.url.rstrip('/')
                self._pool = urllib3.PoolManager(
                    ssl_context=tls_verify.of_server(bool(address.ca_file)),
                    ca_certs=address.ca_file,
                    maxsize=_MAX_KEPT,
                    retries=False,
                )
                self.identity: tuple[Any, ...] = (
                    self._url,
                    address.token_file,
                    _contents(address.ca_file),
                )
            else:
                self._load(address)
        # With an invalid file the library raises any exception.
        except Exception as fault:
            raise errors.ConfigurationError(
                f'The API server of a cluster cannot be used: {fault}'
            ) from None

    def _load(self, address: Address) -> None:
        if importlib.util.find_spec('kubernetes') is None:
            raise LookupError(
                'a kubeconfig file or a service account is read with the '
                'library kubernetes: install scheduler-service[kubernetes]'
            )
        # Here, since it takes a second and most daemons need none of it.
        from kubernetes import client, config

        used = client.Configuration()
        if address.kubeconfig:
            config.load_kube_config(
                config_file=address.kubeconfig,
                context=address.context,
                client_configuration=used,
                persist_config=False,
            )
        else:
            config.load_incluster_config(client_configuration=used)
        # Retries and their logging are up to this package.
        used.retries = False
        self._url = used.host.rstrip('/')
        self._credentials = used
        self._pool = client.ApiClient(used).rest_client.pool_manager
        ca = used.ssl_ca_cert or getattr(used, 'ca_cert_data', None)
        self._pool.connection_pool_kw['ssl_context'] = tls_verify.of_server(
            has_ca=bool(ca), is_verified=used.verify_ssl
        )
        # The token of a service account is read again for each call.
        tokens = sorted(used.api_key.items()) if address.kubeconfig else ()
        files = used.ssl_ca_cert, used.cert_file, used.key_file
        self.identity = self._url, *map(_contents, files), *tokens

    def _headers(self) -> dict[str, str]:
        headers = {'Content-Type': 'application/json'}
        if self._credentials is not None:
            # Runs the file's program for a new token, once the last expired.
            for part in self._credentials.auth_settings().values():
                if part['value']:
                    headers[part['key']] = part['value']
        elif self._token_file:
            token = pathlib.Path(self._token_file).read_text().strip()
            headers['Authorization'] = f'Bearer {token}'
        return headers

    def call(
        self, method: str, path: str, timeout: urllib3.Timeout, **more: Any
    ) -> urllib3.BaseHTTPResponse:
        """Return the response to a call."""
        try:
            return self._pool.request(
                method,
                self._url + path,
                headers=self._headers(),
                timeout=timeout,
                **more,
            )
        except (urllib3.exceptions.HTTPError, OSError) as fault:
            raise ApiLost(str(fault)) from None

    def bind(
        self, space: str, name: str, uid: str, node: str, timeout: float
    ) -> None:
        """Bind a pod to a node, unless it is bound there already.

        Where the answer is lost, the pod says whether it is bound.

        :param space: the pod's namespace
        :param timeout: seconds within which the pod has to be bound
        :raises ExtenderFailed: the API server refuses, or is unreachable; it
            has the fact ``in_doubt`` if the pod may be bound
        """
        binding = {
            'apiVersion': 'v1',
            'kind': 'Binding',
            'metadata': {'name': name, 'namespace': space, 'uid': uid},
            'target': {'apiVersion': 'v1', 'kind': 'Node', 'name': node},
        }
        deadline = time.monotonic() + timeout
        path = _path_of(space, name)
        try:
            response = self._call_until(
                'POST', f'{path}/binding', wire.encode(binding), deadline
            )
        except errors.ExtenderFailed as lost:
            if self._is_on(path, uid, node, deadline):
                return
            raise lost from None
        status = response.status
        if status in (200, 201):
            return
        if (status == 409 or status >= 500) and self._is_on(
            path, uid, node, deadline
        ):
            return
        why: Any = status
        with contextlib.suppress(wire.WireError):
            text = wire.field(wire.decode(response.data), 'message', str)
            why = text or status
        raise errors.ExtenderFailed(
            f'The API server did not bind {space}/{name} to {node}: '
            f'{str(why)[:500]}',
            status=status,
        )

    def pod(self, space: str, name: str, timeout: float) -> Pod | None:
        """Return a pod; None: there is none.

        :raises ExtenderFailed: the API server refuses, or is unreachable
        """
        deadline = time.monotonic() + timeout
        path = _path_of(space, name)
        response = self._call_until('GET', path, None, deadline)
        if response.status == 404:
            return None
        if response.status != 200:
            raise errors.ExtenderFailed(
                f'The API server did not return {space}/{name}: '
                f'{response.status}',
                status=response.status,
            )
        return pod_reader.read(response.data)

    def _is_on(self, path: str, uid: str, node: str, deadline: float) -> bool:
        """Whether a pod is bound to a node.

        :raises ExtenderFailed: it is not known
        """
        try:
            response = self._call_until('GET', path, None, deadline)
        except errors.ExtenderFailed as error:
            error.facts['in_doubt'] = True
            raise
        if response.status != 200:
            return False
        found = pod_reader.read(response.data)
        same = not uid or found.metadata.uid == uid
        return same and found.spec.nodeName == node

    def _call_until(
        self, method: str, path: str, body: bytes | None, deadline: float
    ) -> urllib3.BaseHTTPResponse:
        seconds = max(deadline - time.monotonic(), _LEAST_S)
        try:
            return self.call(
                method, path, urllib3.Timeout(total=seconds), body=body
            )
        except ApiLost as fault:
            raise errors.ExtenderFailed(
                f'The API server is unreachable: {fault}'
            ) from None

    def list(
        self, kind: str, selector: str = ''
    ) -> tuple[list[msgspec.Raw], str]:
        """Return all objects of a kind, and the version to watch from.

        :param kind: ``nodes`` or ``pods``
        :param selector: of their fields
        :raises VersionExpired: there were too many changes meanwhile
        """
        objects: list[msgspec.Raw] = []
        more: dict[str, str] = {}
        while True:
            response = self._open(
                kind, selector, _LIST_S, limit=str(_PAGE), **more
            )
            try:
                page = _read_page(response.data)
            except msgspec.DecodeError as fault:
                raise ApiLost(f'no list of {kind}: {fault}') from None
            except (urllib3.exceptions.HTTPError, OSError) as fault:
                raise ApiLost(str(fault)) from None
            finally:
                _release(response)
            objects += page.items or []
            metadata = page.metadata
            if not metadata.following:
                return objects, metadata.resource_version
            more = {'continue': metadata.following}

    def watch(self, kind: str, version: str, selector: str = '') -> Watch:
        """Watch changes from a version on.

        :raises VersionExpired: the version is too old
        """
        seconds = self._watch_seconds
        return Watch(
            self._open(
                kind, selector, _LONGER * seconds,
                watch='true', resourceVersion=version,
                allowWatchBookmarks='true', timeoutSeconds=str(seconds),
            )
        )  # fmt: skip

    def _open(
        self, kind: str, selector: str, silence: float, **fields: str
    ) -> Any:
        if selector:
            fields['fieldSelector'] = selector
        response = self.call(
            'GET',
            f'/api/v1/{kind}',
            urllib3.Timeout(connect=_CONNECT_S, read=silence),
            fields=fields,
            preload_content=False,
        )
        if response.status == 200:
            return response
        _release(response)
        if response.status == _GONE:
            raise VersionExpired
        raise ApiLost(f'{kind}: {response.status} {response.reason}')


class Watch:
    """Changes, as they come, until the API server ends the watch."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def events(self) -> Iterator[WatchEvent]:
        """Yield changes.

        :raises VersionExpired: the version is too old
        """
        rest = b''
        try:
            for chunk in self._response.stream(None):
                *lines, rest = (rest + chunk).split(b'\n')
                for line in lines:
                    if line:
                        yield _event(line)
        except (
            urllib3.exceptions.HTTPError,
            msgspec.MsgspecError,
            OSError,
            ValueError,
        ) as fault:
            raise ApiLost(str(fault)) from None
        finally:
            _release(self._response)

    def close(self) -> None:
        """End the watch, from any thread."""
        with contextlib.suppress(Exception):
            self._response.shutdown()


def _path_of(space: str, name: str) -> str:
    quoted = parse.quote(space, safe=''), parse.quote(name, safe='')
    return '/api/v1/namespaces/{}/pods/{}'.format(*quoted)


def _event(text: bytes) -> WatchEvent:
    line = _read_line(text)
    if line.type == 'ERROR':
        fault = msgspec.json.decode(line.object)
        if fault.get('code') == _GONE:
            raise VersionExpired
        raise ApiLost(str(fault.get('message'))[:200])
    version = _read_object(line.object).metadata.resource_version
    return WatchEvent(line.type, line.object, version)


def _release(response: Any) -> None:
    response.close()
    response.release_conn()


def _contents(path: str | None) -> bytes:
    return pathlib.Path(path).read_bytes() if path else b''
