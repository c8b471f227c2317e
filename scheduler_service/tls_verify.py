"""Which certificates are trusted, independent of the release of Python.

From 3.13 on its defaults refuse certificates that older releases accept, and
that programs in Go accept: a CA without its key usage, a certificate that does
not name the key of its issuer. Many clusters have such certificates.
"""

from __future__ import annotations

import ssl


def widen(context: ssl.SSLContext) -> ssl.SSLContext:
    """Let a context accept certificates that lack optional parts.

    Signatures, names, dates and purposes are checked as before.

    :return: the same context
    """
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def of_server(has_ca: bool, is_verified: bool = True) -> ssl.SSLContext:
    """Return how a pool of connections checks the certificate of a server.

    :param has_ca: whether the pool is given the CA, which it reads for each
        connection; else the system's CAs are trusted
    :param is_verified: whether it is checked at all
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not is_verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif not has_ca:
        context.load_default_certs()
    return widen(context)
