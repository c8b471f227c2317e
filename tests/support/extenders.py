"""A real HTTP extender on loopback, which does what a test tells it to."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import gzip
import http.server
import ipaddress
import json
import pathlib
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.waiting import LIMIT_S

DAY = datetime.timedelta(days=1)
_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
# A resource that a configuration may give an extender to manage.
FPGA = 'scheduler-service.local/CUSTOM_FPGA'
WITH_FPGA = {'extra_specs': {'resources:CUSTOM_FPGA': '1'}}


@dataclasses.dataclass
class Reply:
    """What one call is answered with."""

    document: Any = None
    status: int = 200
    raw: bytes | None = None
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    delay: float = 0.0

    @property
    def body(self) -> bytes:
        """What goes over the wire."""
        if self.raw is not None:
            return self.raw
        return json.dumps(self.document).encode()


Answer = Callable[[str, Any], Reply]


def pass_all(verb: str, asked: Any) -> Reply:
    """Let every node pass, and score none."""
    if verb == 'filter':
        return Reply({'Nodes': asked['Nodes'], 'NodeNames':
                      asked['NodeNames']})  # fmt: skip
    if verb == 'prioritize':
        names = asked['NodeNames'] or [
            one['metadata']['name'] for one in asked['Nodes']['items']
        ]
        return Reply([{'Host': name, 'Score': 0} for name in names])
    return Reply({'Error': ''})


def pass_only(*names: str) -> Answer:
    """Let only the named nodes pass; the reason of others is "no port"."""

    def answer(verb: str, asked: Any) -> Reply:
        if verb != 'filter':
            return pass_all(verb, asked)
        sent = asked['NodeNames']
        return Reply({
            'NodeNames': [name for name in sent if name in names],
            'FailedNodes': {n: 'no port' for n in sent if n not in names},
        })  # fmt: skip

    return answer


def entry(server: Extender, **more: Any) -> dict[str, Any]:
    """Return a server's entry in the configuration of a scheduler."""
    return {'urlPrefix': server.url, 'filterVerb': 'filter',
            'nodeCacheCapable': True, 'httpTimeout': f'{LIMIT_S:.0f}s',
            **more}  # fmt: skip


class Extender:
    """The server; ``calls`` has (verb, request), ``headers`` those of each."""

    def __init__(
        self, answer: Answer = pass_all, context: ssl.SSLContext | None = None
    ) -> None:
        self.answer = answer
        self.calls: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.connections = 0
        extender = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = 'HTTP/1.1'
            disable_nagle_algorithm = True
            wbufsize = -1

            def setup(self) -> None:
                super().setup()
                extender.connections += 1

            def do_POST(self) -> None:
                size = int(self.headers.get('Content-Length') or 0)
                asked = json.loads(self.rfile.read(size))
                verb = self.path.rsplit('/', 1)[-1]
                extender.calls.append((verb, asked))
                extender.headers.append(dict(self.headers))
                reply = extender.answer(verb, asked)
                time.sleep(reply.delay)
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header('Content-Length', str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)
                self.wfile.flush()

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: Any) -> None:
                """A client that went away is none of our business."""

        self._server = Server(('127.0.0.1', 0), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True,
                do_handshake_on_connect=False,
            )  # fmt: skip
        self.port = self._server.server_address[1]
        scheme = 'http' if context is None else 'https'
        self.url = f'{scheme}://127.0.0.1:{self.port}/ext'
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={'poll_interval': 0.02}
        )

    def verbs(self) -> list[str]:
        """Return the verbs that were called, in order."""
        return [verb for verb, _ in self.calls]


@contextlib.contextmanager
def extender(
    answer: Answer = pass_all, context: ssl.SSLContext | None = None
) -> Iterator[Extender]:
    """Run an extender until the block ends."""
    made = Extender(answer, context)
    made._thread.start()
    try:
        yield made
    finally:
        made._server.shutdown()
        made._server.server_close()
        made._thread.join()


def zipped(document: Any) -> Reply:
    """Return a reply that is compressed."""
    return Reply(
        raw=gzip.compress(json.dumps(document).encode()),
        headers={'Content-Encoding': 'gzip'},
    )


@dataclasses.dataclass
class Certificates:
    """Files of a CA, of a server on loopback, and of a client."""

    ca: pathlib.Path
    server: tuple[pathlib.Path, pathlib.Path]
    client: tuple[pathlib.Path, pathlib.Path]

    def server_context(self, clients: bool = False) -> ssl.SSLContext:
        """Return a server's context; *clients*: they need certificates."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self.server)
        if clients:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def certificates(folder: pathlib.Path) -> Certificates:
    """Make certificates in a folder."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _signed(ca_key, 'ca', ca_key, 'ca', True)
    _write(folder / 'ca.pem', ca.public_bytes(serialization.Encoding.PEM))
    made = {}
    for name in ('server', 'client'):
        key = ec.generate_private_key(ec.SECP256R1())
        cert = _signed(key, name, ca_key, 'ca', False)
        _write(
            folder / f'{name}.pem',
            cert.public_bytes(serialization.Encoding.PEM),
        )
        _write(
            folder / f'{name}.key',
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )
        made[name] = folder / f'{name}.pem', folder / f'{name}.key'
    return Certificates(folder / 'ca.pem', made['server'], made['client'])


def _write(path: pathlib.Path, data: bytes) -> None:
    path.write_bytes(data)


def _signed(key: Any, name: str, by: Any, issuer: str, ca: bool) -> Any:
    now = datetime.datetime.now(datetime.UTC)
    names = [
        x509.DNSName('localhost'),
        x509.IPAddress(ipaddress.ip_address('127.0.0.1')),
    ]

    def named(one: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)])

    builder = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.BasicConstraints(ca, None), True)
        .add_extension(x509.SubjectAlternativeName(names), False)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(
                by.public_key()
            ),
            False,
        )
    )
    if ca:
        # Python 3.13 takes no CA that does not say what its key is for.
        builder = builder.add_extension(_SIGNS_CERTIFICATES, True)
    return builder.sign(by, hashes.SHA256())
