"""The settings of HTTPS; stateless."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator

from scheduler_service import tls_verify

# Of TLS 1.2; those of TLS 1.3 are all of this kind.
_CIPHERS = 'ECDHE+AESGCM:ECDHE+CHACHA20'


def settings(cert: str, key: str, ca: str | None) -> ssl.SSLContext:
    """Return the settings of HTTPS.

    :param ca: path of the CA of client certificates, which are optional
    :raises OSError: a file cannot be read, or is not valid
    """
    context = tls_verify.widen(
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    )
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    # All offered ciphers are strong. The client knows which of them are fast
    # on its processor; Go's clients prefer AES with 128 bits.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    with _naming(f'cert_file {cert} with key_file {key}'):
        # An empty password: OpenSSL would prompt for that of an encrypted key.
        context.load_cert_chain(cert, key, password=lambda: b'')
    context.set_alpn_protocols(['http/1.1'])
    if ca:
        with _naming(f'ca_file {ca}'):
            context.load_verify_locations(ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


@contextlib.contextmanager
def _naming(files: str) -> Iterator[None]:
    """Prefix errors of the code inside with the files concerned."""
    try:
        yield
    except (OSError, ValueError) as fault:
        raise OSError(f'{files}: {fault}') from None
