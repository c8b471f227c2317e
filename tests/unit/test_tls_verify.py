"""What certificates are taken, by connections that are really made."""

import datetime
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from scheduler_service import tls_verify

DAY = datetime.timedelta(days=1)


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


@pytest.fixture(scope='module')
def plain(tmp_path_factory):
    """A CA without key usage, and a certificate that names no key."""
    folder = tmp_path_factory.mktemp('plain')
    now = datetime.datetime.now(datetime.UTC)
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    for name, own, extension in (
        ('ca', ca_key, x509.BasicConstraints(True, None)),
        (
            'server',
            key,
            x509.SubjectAlternativeName([x509.DNSName('localhost')]),
        ),
    ):
        made = (
            x509.CertificateBuilder()
            .subject_name(named(name))
            .issuer_name(named('ca'))
            .public_key(own.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(extension, critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        (folder / f'{name}.crt').write_bytes(
            made.public_bytes(serialization.Encoding.PEM)
        )
    (folder / 'server.key').write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder


def shake_hands(client_context, folder, name='localhost') -> None:
    """Let a client and a server talk until the client is content."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(
        folder / 'server.crt', folder / 'server.key'
    )
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(back, there, server_hostname=name)
    server = server_context.wrap_bio(there, back, server_side=True)
    for one in (client, server, client):
        try:
            one.do_handshake()
        except ssl.SSLWantReadError:
            continue


def strict(folder) -> ssl.SSLContext:
    """Return what Python makes by default from 3.13 on."""
    context = ssl.create_default_context(cafile=str(folder / 'ca.crt'))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def of_pool(folder) -> ssl.SSLContext:
    context = tls_verify.of_server(has_ca=True)
    context.load_verify_locations(folder / 'ca.crt')
    return context


def test_plain_certificates_are_taken_by_every_release(plain):
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(strict(plain), plain)
    shake_hands(tls_verify.widen(strict(plain)), plain)
    shake_hands(of_pool(plain), plain)


@pytest.mark.parametrize('make', [strict, of_pool])
def test_another_name_is_refused(plain, make):
    with pytest.raises(ssl.SSLCertVerificationError, match='Hostname'):
        shake_hands(tls_verify.widen(make(plain)), plain, 'other')


@pytest.mark.parametrize('has_ca', [True, False])
def test_another_ca_is_refused(plain, has_ca):
    with pytest.raises(ssl.SSLCertVerificationError, match='local issuer'):
        shake_hands(tls_verify.of_server(has_ca), plain)


def test_nothing_is_checked_where_that_is_wanted(plain):
    shake_hands(tls_verify.of_server(True, is_verified=False), plain, 'other')
