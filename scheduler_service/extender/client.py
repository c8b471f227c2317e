"""Calls to one extender over HTTP, as a kube-scheduler makes them.

Connections are kept. A call has one time limit for all of it: connecting,
redirects, headers and body. Only status 200 is read.
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

from scheduler_service import errors
from scheduler_service.extender import wire
from scheduler_service.extender.config import Extender, Tls

LOG = logging.getLogger(__name__)
_MOST_BYTES = 64 * 1024 * 1024
_PIECE = 65536
_REDIRECTS = 10
_AGAIN_AS_IS = (307, 308)
_AS_GET = (301, 302, 303)
_KEPT = 16
_HEADERS = {
    'Content-Type': 'application/json',
    'Accept-Encoding': 'gzip',
    'User-Agent': 'scheduler-service',
}


class CallFailed(Exception):
    """A call that gave no answer; the text says what went wrong.

    :ivar reason: a word for counters: ``timeout``, ``unreachable``,
        ``status``, ``undecodable`` or ``refused``
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Client:
    """Calls one extender; may be used by many threads at once.

    :raises ConfigurationError: its TLS material does not load
    """

    def __init__(self, extender: Extender) -> None:
        self.extender = extender
        how: dict[str, Any] = {
            'maxsize': _KEPT,
            'retries': False,
            'ssl_context': _context(extender),
        }
        tls = extender.tls
        if tls is not None and tls.server_name:
            how['server_hostname'] = tls.server_name
            how['assert_hostname'] = tls.server_name
        if not _verified(extender):
            how['assert_hostname'] = False
            # It is said once, when the context is made, not at every call.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        self._pool = _manager(extender.url_prefix, how)

    def call(self, verb: str, document: Any) -> Any:
        """Send a document to a verb; return the one that is answered.

        :raises CallFailed: there was no answer, or it is not to be read
        """
        deadline = time.monotonic() + self.extender.timeout
        url, method = self.extender.url(verb), 'POST'
        body: bytes | None = wire.encode(document)
        for _ in range(_REDIRECTS):
            status, answer, place = self._once(method, url, body, deadline)
            if status == 200:
                return _decoded(answer)
            if place is None or status not in (*_AGAIN_AS_IS, *_AS_GET):
                raise CallFailed('status', f'{url}: status {status}')
            url = parse.urljoin(url, place)
            if status in _AS_GET:
                method, body = 'GET', None
        raise CallFailed('status', f'{url}: more than {_REDIRECTS} redirects')

    def close(self) -> None:
        """Close the connections that are kept."""
        self._pool.clear()

    def _once(
        self, method: str, url: str, body: bytes | None, deadline: float
    ) -> tuple[int, bytes, str | None]:
        """Return (status, body if it is to be read, where it points)."""
        left = deadline - time.monotonic()
        try:
            answer = self._pool.request(
                method,
                url,
                body=body,
                headers=_HEADERS,
                redirect=False,
                preload_content=False,
                timeout=urllib3.Timeout(total=max(left, 0.001)),
            )
            try:
                text = _read(answer, deadline) if answer.status == 200 else b''
                return answer.status, text, answer.headers.get('Location')
            finally:
                _let_go(answer)
        except urllib3.exceptions.TimeoutError:
            raise CallFailed(
                'timeout', f'{url}: no answer in {self.extender.timeout:g} s'
            ) from None
        except (urllib3.exceptions.HTTPError, OSError) as fault:
            raise CallFailed('unreachable', f'{url}: {fault}') from None


def _read(answer: Any, deadline: float) -> bytes:
    """Read a body piece by piece, within the time of the call."""
    found = bytearray()
    for piece in answer.stream(_PIECE, decode_content=True):
        found += piece
        if len(found) > _MOST_BYTES:
            raise CallFailed('undecodable', 'the answer is too long')
        if time.monotonic() > deadline:
            raise urllib3.exceptions.TimeoutError
    return bytes(found)


def _let_go(answer: Any) -> None:
    """Keep the connection if its answer was read to the end."""
    if answer.status == 200 and answer.closed:
        answer.release_conn()
    else:
        answer.close()


def _decoded(body: bytes) -> Any:
    try:
        return wire.decode(body)
    except wire.WireError as fault:
        raise CallFailed('undecodable', f'the answer: {fault}') from None


def _manager(url: str, how: dict[str, Any]) -> Any:
    """Return a pool, through the environment's proxy where it names one."""
    parsed = parse.urlsplit(url)
    proxy = request.getproxies().get(parsed.scheme)
    host = parsed.hostname or ''
    near = host == 'localhost' or host.startswith('127.') or host == '::1'
    if proxy and not near and not request.proxy_bypass(parsed.netloc):
        return urllib3.ProxyManager(proxy, **how)
    return urllib3.PoolManager(**how)


def _verified(extender: Extender) -> bool:
    """Whether the server's certificate is checked.

    Without a CA, ``enableHTTPS`` turns the check off: so it was always read.
    """
    tls = extender.tls or Tls()
    if tls.insecure:
        return False
    return bool(tls.ca_file or tls.ca_data) or not extender.enable_https


def _context(extender: Extender) -> ssl.SSLContext | None:
    if not extender.url_prefix.startswith('https:'):
        return None
    tls = extender.tls or Tls()
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not _verified(extender):
        LOG.warning(
            'The certificate of extender %s is not checked',
            extender.url_prefix,
        )
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        _load(context, tls)
    except (OSError, ssl.SSLError, ValueError) as fault:
        raise errors.ConfigurationError(
            f'extender {extender.url_prefix}: its TLS material does not '
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
    """Give a file with the data; the library reads nothing else."""
    if not data:
        yield path
        return
    handle, name = tempfile.mkstemp()
    try:
        with os.fdopen(handle, 'wb') as written:
            written.write(data)
        yield name
    finally:
        os.unlink(name)
