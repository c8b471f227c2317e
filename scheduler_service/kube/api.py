"""Calls of an API server: lists and watches, or plain calls with a token.

Both clients may be used by any thread; a watch by the thread that opened it,
but for :meth:`Watch.close`. :class:`ApiServer` needs the client library, a
:class:`TokenClient` does not.
"""

from __future__ import annotations

import contextlib
import importlib.util
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import urllib3

from scheduler_service import errors, tls_verify

_GONE = 410
_CONNECT_S = 5.0
_LIST_S = 30.0
_PAGE = 500
_WATCH_S = 30
_MAX_KEPT = 8
# A watch that is silent for this many times its length belongs to a server
# that hangs.
_LONGER = 1.33
# A chunk that took longer, in seconds, had not arrived yet.
_WAITED_S = 0.001
_GATHER_S = 0.02


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


class Listing(NamedTuple):
    """All objects of a kind at one moment.

    :ivar objects: their JSON
    :ivar version: at which a watch begins
    """

    objects: list[msgspec.Raw]
    version: str


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
    """Metadata of a page of a list.

    :ivar resource_version: at which a watch begins
    :ivar following: token of the next page; empty: this page is the last
    """

    resource_version: str
    following: str = msgspec.field(default='', name='continue')


class _Page(msgspec.Struct):
    """A page of a list.

    :ivar items: objects, in JSON
    """

    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


_read_line = msgspec.json.Decoder(_Line).decode
_read_object = msgspec.json.Decoder(_Object).decode
_read_page = msgspec.json.Decoder(_Page).decode


def _page(kind: str, body: bytes) -> _Page:
    """Return a page of a list.

    :raises ApiLost: the body is not a list
    """
    try:
        return _read_page(body)
    except msgspec.DecodeError as fault:
        raise ApiLost(f'no list of {kind}: {fault}') from None


class TokenClient:
    """Calls an API server with a token, without the client library.

    :param url: of the server
    :param token_file: path of a bearer token, read again for each call
    :param ca_file: path of the CA of its certificate; None: the system's CAs
    """

    def __init__(
        self, url: str, token_file: str | None, ca_file: str | None
    ) -> None:
        self._url = url.rstrip('/')
        self._token_file = token_file
        self._pool = urllib3.PoolManager(
            ssl_context=tls_verify.of_server(has_ca=ca_file is not None),
            ca_certs=ca_file,
            maxsize=_MAX_KEPT,
            retries=False,
        )

    def call(
        self, method: str, path: str, timeout: urllib3.Timeout, **more: Any
    ) -> urllib3.BaseHTTPResponse:
        """Return the response to a call.

        :raises ApiLost: the API server does not answer
        """
        headers = {'Content-Type': 'application/json'}
        try:
            if self._token_file:
                token = pathlib.Path(self._token_file).read_text().strip()
                headers['Authorization'] = f'Bearer {token}'
            return self._pool.request(
                method,
                self._url + path,
                headers=headers,
                timeout=timeout,
                **more,
            )
        except (urllib3.exceptions.HTTPError, OSError) as fault:
            raise ApiLost(str(fault)) from None

    def list_pods(self, selector: str) -> list[msgspec.Raw]:
        """Return all pods.

        :param selector: of their fields
        :raises ApiLost: the API server does not answer, or refuses
        """
        pods: list[msgspec.Raw] = []
        fields = {'fieldSelector': selector, 'limit': str(_PAGE)}
        timeout = urllib3.Timeout(connect=_CONNECT_S, read=_LIST_S)
        while True:
            response = self.call('GET', '/api/v1/pods', timeout, fields=fields)
            if response.status != 200:
                raise ApiLost(f'pods: {response.status} {response.reason}')
            page = _page('pods', response.data)
            pods += page.items or []
            if not page.metadata.following:
                return pods
            fields['continue'] = page.metadata.following


class ApiServer:
    """A client of an API server.

    :param watch_seconds: after which a watch ends, to be opened again
    :ivar identity: equal if address and credentials are; a token that is read
        again for each call does not count
    :raises ConfigurationError: the library is not installed, or the address
        cannot be used
    """

    def __init__(
        self, address: Address, watch_seconds: int = _WATCH_S
    ) -> None:
        self._watch_seconds = watch_seconds
        if importlib.util.find_spec('kubernetes') is None:
            raise errors.ConfigurationError(
                'The API server of a cluster is followed with the library '
                'kubernetes: install scheduler-service[kubernetes]'
            )
        # Here, since it takes a second and most daemons need none of it.
        from kubernetes import client, config

        configuration = client.Configuration()
        try:
            if address.kubeconfig:
                config.load_kube_config(
                    config_file=address.kubeconfig,
                    context=address.context,
                    client_configuration=configuration,
                    persist_config=False,
                )
            elif address.url:
                _use_url(configuration, address)
            else:
                config.load_incluster_config(
                    client_configuration=configuration
                )
        # With an invalid file the library raises any exception.
        except Exception as fault:
            raise errors.ConfigurationError(
                f'[kubernetes] the API server cannot be used: {fault}'
            ) from None
        self.identity = _identity(configuration, bool(address.kubeconfig))
        core = client.CoreV1Api(_client(client.ApiClient, configuration))
        self._calls = {
            'nodes': core.list_node,
            'pods': core.list_pod_for_all_namespaces,
        }
        self._refused: type[Exception] = client.ApiException

    def list(self, kind: str, selector: str = '') -> Listing:
        """Return all objects of a kind.

        :param kind: ``nodes`` or ``pods``
        :param selector: of their fields
        :raises ApiLost: the API server does not answer, or refuses
        :raises VersionExpired: there were too many changes meanwhile
        """
        objects: list[msgspec.Raw] = []
        more: dict[str, Any] = {}
        while True:
            page = self._list_page(kind, selector, more)
            objects += page.items or []
            metadata = page.metadata
            if not metadata.following:
                return Listing(objects, metadata.resource_version)
            more = {'_continue': metadata.following}

    def _list_page(
        self, kind: str, selector: str, more: Mapping[str, Any]
    ) -> _Page:
        response = self._open(kind, selector, _LIST_S, limit=_PAGE, **more)
        with _released(response):
            try:
                return _page(kind, response.data)
            except (urllib3.exceptions.HTTPError, OSError) as fault:
                raise ApiLost(str(fault)) from None

    def watch(self, kind: str, version: str, selector: str = '') -> Watch:
        """Watch changes from a version on.

        :raises ApiLost: the API server does not answer, or refuses
        :raises VersionExpired: the version is too old
        """
        seconds = self._watch_seconds
        return Watch(
            self._open(
                kind, selector, _LONGER * seconds,
                watch=True, resource_version=version,
                allow_watch_bookmarks=True, timeout_seconds=seconds,
            )
        )  # fmt: skip

    def _open(
        self, kind: str, selector: str, silence: float, **more: Any
    ) -> Any:
        if selector:
            more['field_selector'] = selector
        try:
            response = self._calls[kind](
                _preload_content=False,
                _request_timeout=(_CONNECT_S, silence),
                **more,
            )
            status, reason = response.status, response.reason
        except self._refused as fault:
            status = getattr(fault, 'status', 0)
            reason = getattr(fault, 'reason', fault)
        except (urllib3.exceptions.HTTPError, OSError) as fault:
            raise ApiLost(str(fault)) from None
        if status == _GONE:
            raise VersionExpired
        if status != 200:
            raise ApiLost(f'{kind}: {status} {reason}')
        return response


class Watch:
    """Changes, as they come, until the API server ends the watch."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def events(self) -> Iterator[WatchEvent]:
        """Yield changes.

        :raises ApiLost: the connection broke, or hangs
        :raises VersionExpired: the version is too old
        """
        rest = b''
        try:
            with _released(self._response):
                for chunk in self._chunks():
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

    def _chunks(self) -> Iterator[bytes]:
        """Yield chunks as they arrive.

        After a chunk that had to be waited for there is a pause, so that
        several are read for one wake-up.
        """
        chunks = self._response.stream(None)
        while True:
            before = time.monotonic()
            chunk = next(chunks, None)
            if chunk is None:
                return
            has_waited = time.monotonic() - before > _WAITED_S
            yield chunk
            if has_waited:
                time.sleep(_GATHER_S)

    def close(self) -> None:
        """End the watch, from any thread."""
        with contextlib.suppress(Exception):
            self._response.shutdown()


def _event(text: bytes) -> WatchEvent:
    line = _read_line(text)
    if line.type == 'ERROR':
        fault = msgspec.json.decode(line.object)
        if fault.get('code') == _GONE:
            raise VersionExpired
        raise ApiLost(str(fault.get('message'))[:200])
    version = _read_object(line.object).metadata.resource_version
    return WatchEvent(line.type, line.object, version)


@contextlib.contextmanager
def _released(response: Any) -> Iterator[None]:
    try:
        yield
    finally:
        response.close()
        response.release_conn()


def _client(kind: Any, configuration: Any) -> Any:
    """Return a client of the library, with our check of certificates."""
    # Retries and their logging are up to this package.
    configuration.retries = False
    made = kind(configuration)
    ca = configuration.ssl_ca_cert or getattr(
        configuration, 'ca_cert_data', None
    )
    made.rest_client.pool_manager.connection_pool_kw['ssl_context'] = (
        tls_verify.of_server(
            has_ca=bool(ca), is_verified=configuration.verify_ssl
        )
    )
    return made


def _identity(used: Any, has_tokens: bool) -> tuple[Any, ...]:
    """Return a value that is equal for equal address and credentials.

    :param has_tokens: whether tokens are fixed, so that they count
    """
    files = used.ssl_ca_cert, used.cert_file, used.key_file
    tokens = sorted(used.api_key.items()) if has_tokens else ()
    return (
        used.host,
        *(pathlib.Path(path).read_bytes() if path else b'' for path in files),
        *tokens,
    )


def _use_url(configuration: Any, address: Address) -> None:
    """Use an address with a token that is read again for each call."""
    configuration.host = address.url
    configuration.ssl_ca_cert = address.ca_file
    path = address.token_file
    if path is None:
        return

    def read_token(used: Any) -> None:
        token = pathlib.Path(path).read_text().strip()
        # Release 36 of the library renamed the key.
        for name in ('BearerToken', 'authorization'):
            used.api_key[name] = f'Bearer {token}'

    read_token(configuration)
    configuration.refresh_api_key_hook = read_token
