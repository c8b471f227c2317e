"""Admission of HTTP clients by bearer tokens and client certificates.

The main thread builds a :class:`Guard`; the HTTP server's thread calls it.
"""

from __future__ import annotations

import hmac
import ipaddress
import pathlib
from collections.abc import Sequence
from typing import Any

from scheduler_service import errors
from scheduler_service.http.message import HttpRequest

# Key of the client's credentials in the environment of a WSGI application.
CREDENTIALS = 'scheduler_service.credentials'
PUBLIC = ('/healthcheck', '/readyz')
_LOOPBACK = 'localhost'


class Guard:
    """Admits clients that have the token or a client certificate.

    :param token: None: no token is required
    :param certificates: whether client certificates are checked
    :param roles: of every admitted client
    :param public: paths that need neither token nor certificate
    """

    def __init__(
        self,
        token: bytes | None,
        certificates: bool,
        roles: Sequence[str],
        public: Sequence[str] = PUBLIC,
    ) -> None:
        self._public = frozenset(public)
        self._token = token
        self._certificates = certificates
        self._roles = list(roles)

    def has_token_of(self, guard: Guard) -> bool:
        """Whether both guards have the same token, or none."""
        return self._token == guard._token

    def credentials(self, request: HttpRequest) -> dict[str, Any]:
        """Return the client's credentials in the form of policy rules."""
        return {'user_id': request.certificate, 'roles': self._roles}

    def is_of_a_page(self, request: HttpRequest) -> bool:
        """Whether a web page sent a request that needs no credentials.

        A browser on this machine may show any page, and sends the page's
        origin with each request that could change something.
        """
        is_open = not (self._token or self._certificates)
        return is_open and b'origin' in request.headers

    def admits(self, request: HttpRequest) -> bool:
        """Whether the client may send this request."""
        if not (self._token or self._certificates):
            return True
        if request.certificate is not None:
            return True
        if request.path.rstrip('/') in self._public:
            return True
        sent = request.headers.get(b'authorization', b'')
        scheme, _, token = sent.partition(b' ')
        return (
            self._token is not None
            and scheme.lower() == b'bearer'
            and hmac.compare_digest(token.strip(), self._token)
        )


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
    return Guard(token, bool(group.ca_file), group.roles, (*PUBLIC, *public))


def is_loopback(host: str) -> bool:
    """Whether no other machine can connect to an address or name."""
    try:
        return ipaddress.ip_address(host.strip('[]')).is_loopback
    except ValueError:
        return host == _LOOPBACK


def certificate_name(session: Any) -> str | None:
    """Return the name (CN) of a client's certificate, empty without one.

    :param session: of TLS; None: the connection is not encrypted
    :return: None where the client has sent no certificate
    """
    sent = session.getpeercert() if session is not None else None
    if not sent:
        return None
    for part in sent.get('subject', ()):
        for name, value in part:
            if name == 'commonName':
                return str(value)
    return ''
