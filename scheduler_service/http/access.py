"""Who may use HTTP: bearer tokens and client certificates.

Built by the main thread; the thread of the HTTP server asks it.
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
    :param roles: of every client that is admitted
    :param public: paths that need neither
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

    def has_token_of(self, other: Guard) -> bool:
        """Whether another guard has the same token, or neither has one."""
        return self._token == other._token

    def credentials(self, request: HttpRequest) -> dict[str, Any]:
        """Return who the client of a request is, as policy rules read it."""
        return {'user_id': request.certificate, 'roles': self._roles}

    def is_of_a_page(self, request: HttpRequest) -> bool:
        """Whether a web page sends a request where anybody may.

        A browser on this machine may show the page of anybody, and names its
        origin with all that could change something.
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

    :param public: paths that need neither token nor certificate, beside
        those that never do
    :param bind_host: name and value of the option that says what is listened
        on; None: those of [http]
    :raises ConfigurationError: the token cannot be read, or other machines
        could connect without one
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
            '[http] ca_file needs cert_file and key_file, too'
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
