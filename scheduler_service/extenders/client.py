"""Calls to one extender over HTTP, as a kube-scheduler makes them.

Connections are kept open. One time limit covers a whole call: connecting,
redirects, headers and body. Only a response with status 200 is read. Any
number of threads may use a client.
"""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib import parse, request

import urllib3

from scheduler_service import errors, tls_verify, tracing
from scheduler_service import extender_wire as wire
from scheduler_service.extenders.policy_file import (
    Extender,
    Tls,
    without_credentials,
)

LOG = logging.getLogger(__name__)
_MAX_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 65536
_MAX_REDIRECTS = 10
_REPEAT_AS_POST = (307, 308)
_REDIRECTS = (301, 302, 303, *_REPEAT_AS_POST)
_POOL_SIZE = 16
_HEADERS = {
    'Content-Type': 'application/json',
    'Accept-Encoding': 'gzip',
    'User-Agent': 'scheduler-service',
}


class CallFailed(Exception):
    """A call without a usable reply.

    :ivar reason: for counters: ``timeout``, ``unreachable``, ``status``,
        ``undecodable`` or ``refused``
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Client:
    """A client of one extender.

    :raises ConfigurationError: TLS material does not load
    """

    def __init__(self, extender: Extender) -> None:
        self.extender = extender
        options: dict[str, Any] = {
            'maxsize': _POOL_SIZE,
            'retries': False,
            'ssl_context': _context(extender),
        }
        tls = extender.tls
        if tls is not None and tls.server_name:
            options['server_hostname'] = tls.server_name
            options['assert_hostname'] = tls.server_name
        if not _verified(extender):
            options['assert_hostname'] = False
            # A warning is logged once, with the context, not with every call.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        self._pool = _manager(extender.url_prefix, options)

    def call(self, verb: str, document: Any) -> Any:
        """Send a document to a verb; return the document of the reply.

        :raises CallFailed: there is no reply
        :raises WireError: the reply is not JSON
        """
        deadline = time.monotonic() + self.extender.timeout
        url, method = self.extender.url(verb), 'POST'
        body: bytes | None = wire.encode(document)
        for _ in range(_MAX_REDIRECTS):
            status, reply, location = self._request(
                method, url, body, deadline
            )
            if status == 200:
                return wire.decode(reply)
            if location is None or status not in _REDIRECTS:
                break
            url = parse.urljoin(url, location)
            if status not in _REPEAT_AS_POST:
                method, body = 'GET', None
        shown = without_credentials(url)
        raise CallFailed('status', f'{shown}: status {status}')

    def close(self) -> None:
        self._pool.clear()

    def _request(
        self, method: str, url: str, body: bytes | None, deadline: float
    ) -> tuple[int, bytes, str | None]:
        """Return (status, body of status 200, Location header)."""
        seconds = deadline - time.monotonic()
        shown = without_credentials(url)
        try:
            response = self._pool.request(
                method,
                url,
                body=body,
                headers={**_HEADERS, **tracing.headers()},
                redirect=False,
                preload_content=False,
                timeout=urllib3.Timeout(total=max(seconds, 0.001)),
            )
            data = b''
            try:
                if response.status == 200:
                    data = _read(response, deadline)
            finally:
                # Kept open if its response was read to the end.
                if response.status == 200 and response.closed:
                    response.release_conn()
                else:
                    response.close()
            return response.status, data, response.headers.get('Location')
        except urllib3.exceptions.TimeoutError:
            raise CallFailed(
                'timeout',
                f'{shown}: no reply within {self.extender.timeout:g} s',
            ) from None
        except (urllib3.exceptions.HTTPError, OSError) as fault:
            # The text may include the URL, and so its credentials.
            text = str(fault).replace(url, shown)
            raise CallFailed('unreachable', f'{shown}: {text}') from None


def _read(response: Any, deadline: float) -> bytes:
    data = bytearray()
    for chunk in response.stream(_CHUNK_BYTES, decode_content=True):
        data += chunk
        if len(data) > _MAX_BYTES:
            raise CallFailed(
                'undecodable', f'the reply has more than {_MAX_BYTES} bytes'
            )
        if time.monotonic() > deadline:
            raise urllib3.exceptions.TimeoutError
    return bytes(data)


def _manager(url: str, options: dict[str, Any]) -> Any:
    """Return a connection pool, with the environment's proxy if set."""
    parsed = parse.urlsplit(url)
    proxy = request.getproxies().get(parsed.scheme)
    host = parsed.hostname or ''
    is_local = host in ('localhost', '::1') or host.startswith('127.')
    if proxy and not is_local and not request.proxy_bypass(parsed.netloc):
        return urllib3.ProxyManager(proxy, **options)
    return urllib3.PoolManager(**options)


def _verified(extender: Extender) -> bool:
    """Whether the server's certificate is verified.

    ``enableHTTPS`` without a CA turns verification off, as in a
    kube-scheduler.
    """
    tls = extender.tls or Tls()
    if tls.insecure:
        return False
    return bool(tls.ca_file or tls.ca_data) or not extender.enable_https


def _context(extender: Extender) -> ssl.SSLContext | None:
    if not extender.url_prefix.startswith('https:'):
        return None
    tls = extender.tls or Tls()
    context = tls_verify.widen(ssl.create_default_context())
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not _verified(extender):
        LOG.warning(
            'The certificate of extender %s is not verified',
            extender.label,
        )
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        _load(context, tls)
    except (OSError, ssl.SSLError, ValueError) as fault:
        raise errors.ConfigurationError(
            f'extender {extender.label}: its certificates or key do not '
            f'load: {fault}'
        ) from None
    return context


def _load(context: ssl.SSLContext, tls: Tls) -> None:
    if tls.ca_data:
        context.load_verify_locations(cadata=tls.ca_data.decode('ascii'))
    elif tls.ca_file:
        context.load_verify_locations(cafile=tls.ca_file)
    if not (tls.cert_data or tls.cert_file):
        return
    with (
        _as_file(tls.cert_data, tls.cert_file) as cert,
        _as_file(tls.key_data, tls.key_file) as key,
    ):
        context.load_cert_chain(cert, key)


@contextmanager
def _as_file(data: bytes, path: str) -> Iterator[str]:
    """Yield the path of a file with the data: the library reads only files."""
    if not data:
        yield path
        return
    handle, name = tempfile.mkstemp()
    try:
        with os.fdopen(handle, 'wb') as file:
            file.write(data)
        yield name
    finally:
        os.unlink(name)
