"""Admission of HTTP clients by bearer tokens and client certificates.

The main thread builds a :class:`Guard`; the HTTP server's thread calls it.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler_service import errors
from scheduler_service.http.message import HttpRequest, Reply, refusal

PUBLIC = ('/healthcheck', '/readyz')
_LOOPBACK = 'localhost'
_BY_HAND = '; if it was a link, press Enter in the address bar'


class Guard:
    """Admits clients that have the token or a client certificate.

    Without either, any local program may send requests, and so may any web
    page in a local browser. A request of a page has an Origin if it could
    change something, and of any most browsers say in Sec-Fetch-Site whether
    another site sends it; if the page's own name resolves to this machine, the
    Host is that name.

    :param token: None: no token is required
    :param certificates: whether client certificates are checked
    :param roles: of every admitted client
    :param public: paths that need neither token nor certificate
    :param hosts: names in Host, besides those of loopback, of requests that
        need no credentials; None: any name
    """

    def __init__(
        self,
        token: bytes | None,
        certificates: bool,
        roles: Sequence[str],
        public: Sequence[str] = PUBLIC,
        hosts: Sequence[str] | None = None,
    ) -> None:
        self._public = frozenset(public)
        self.token = token
        self._certificates = certificates
        self._roles = list(roles)
        self._hosts = None if hosts is None else frozenset(
            name.lower() for name in hosts
        )  # fmt: skip

    def credentials(self, request: HttpRequest) -> dict[str, Any]:
        """Return the client's credentials in the form of policy rules."""
        return {'user_id': request.certificate, 'roles': self._roles}

    def refuse(
        self, request: HttpRequest, is_linked: bool = False
    ) -> Reply | None:
        """Return the refusal of a request; None: it is admitted.

        :param is_linked: whether other sites may link what it asks for
        """
        headers = request.headers
        is_foreign = 'Origin' in headers or not (
            headers.get('Sec-Fetch-Site', 'none') in ('none', 'same-origin')
            or (is_linked and headers.get('Sec-Fetch-Dest') == 'document')
        )
        is_public = request.path.rstrip('/') in self._public
        if self.token or self._certificates:
            if is_public or self._has_token(request, 'bearer'):
                return None
            has_certificate = request.certificate is not None
            if has_certificate or self._has_token(request, 'basic'):
                # A browser sends them to us whatever page asks for it.
                if not is_foreign:
                    return None
                return refusal(403, f'a web page may not send this{_BY_HAND}')
            return refusal(
                401,
                'a bearer token or a client certificate is required; a '
                'browser asks for a name and a password: any, and the token',
                ('WWW-Authenticate', 'Bearer'),
                *self._log_in(request),
            )
        if is_foreign:
            return refusal(
                403,
                'a web page may send requests only where [http] token_file or '
                f'ca_file is set{_BY_HAND}',
            )
        if is_public or self._is_addressed(request):
            return None
        return refusal(
            403,
            'Host is neither a loopback name nor one of [http] allowed_hosts',
        )

    def _log_in(self, request: HttpRequest) -> list[tuple[str, str]]:
        """Return the header that has a browser ask for the token."""
        is_browser = 'text/html' in request.headers.get('Accept', '')
        basic = 'Basic realm="scheduler-service", charset="UTF-8"'
        return [('WWW-Authenticate', basic)] * bool(self.token and is_browser)

    def _has_token(self, request: HttpRequest, scheme: str) -> bool:
        """Whether the token was sent: ``bearer``, or ``basic`` as password."""
        sent, _, text = request.headers.get('Authorization', '').partition(' ')
        token = text.strip().encode('utf-8', 'surrogateescape')
        if scheme == 'basic':
            try:
                token = base64.b64decode(token).partition(b':')[2]
            except ValueError:
                return False
        return (
            self.token is not None
            and sent.lower() == scheme
            and hmac.compare_digest(token, self.token)
        )

    def _is_addressed(self, request: HttpRequest) -> bool:
        """Whether the Host of a request is a name of this machine."""
        name = request.headers.get('Host', _LOOPBACK).lower()
        if self._hosts is None:
            return True
        if not name.endswith(']'):
            name = name.rpartition(':')[0] or name
        return name in self._hosts or is_loopback(name)


def guard_of(
    group: Any,
    public: Sequence[str] = (),
    bind_host: tuple[str, str] | None = None,
) -> Guard:
    """Return the guard for the options of [http].

    :param public: further paths that need neither token nor certificate
    :param bind_host: name and value of the option for the listening address;
        None: those of [http]
    :raises ConfigurationError: the token cannot be read, or other machines
        could connect without a token or certificate
    """
    token = None
    if group.token_file:
        try:
            token = pathlib.Path(group.token_file).read_bytes().strip()
        except OSError as fault:
            raise errors.ConfigurationError(
                f'[http] token_file cannot be read: {fault}'
            ) from None
        if not token:
            raise errors.ConfigurationError('[http] token_file is empty')
    option, address = bind_host or ('[http] bind_host', str(group.bind_host))
    if token is None and not group.ca_file and not is_loopback(address):
        raise errors.ConfigurationError(
            f'{option} is not on loopback: set [http] token_file or ca_file'
        )
    if group.ca_file and not group.cert_file:
        raise errors.ConfigurationError(
            '[http] ca_file also needs cert_file and key_file'
        )
    return Guard(
        token,
        bool(group.ca_file),
        group.roles,
        (*PUBLIC, *public),
        group.allowed_hosts,
    )


def is_loopback(host: str) -> bool:
    """Whether no other machine can connect to an address or name."""
    try:
        return ipaddress.ip_address(host.strip('[]')).is_loopback
    except ValueError:
        return host == _LOOPBACK


def certificate_name(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the name (CN) of a client's certificate, empty without one.

    :param certificate: as :mod:`ssl` decodes it; None or empty: not sent
    :return: None where the client has sent no certificate
    """
    if not certificate:
        return None
    parts = (pair for part in certificate.get('subject', ()) for pair in part)
    return str(dict(parts).get('commonName', ''))
