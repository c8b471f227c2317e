"""A daemon that takes other options of HTTP, and files that were replaced."""

import json
import ssl
import threading

import pytest

from scheduler_service import errors
from tests.support import extenders, raw_http
from tests.support.http_client import HttpClient
from tests.support.services import reconfigure
from tests.support.waiting import wait_until

# Nothing of the request is there but its size.
EXPLAIN = b'{"request": {}}'


@pytest.fixture
def token(serve_http, tmp_path):
    """A daemon with a token, its file, and a function to try one."""
    path = tmp_path / 'token'
    path.write_text('first\n')
    options = {'http__token_file': str(path)}
    http = serve_http(**options)

    def status(sent):
        headers = {'Authorization': f'Bearer {sent}'}
        return http.send('GET', '/metrics', **headers)[0]

    assert (status('first'), status('second')) == (200, 401)
    return http, path, options, status


def test_a_replaced_token_counts_on_old_connections(token, caplog):
    caplog.set_level('INFO')
    http, path, options, status = token
    reconfigure(http.service, **options)
    assert 'token' not in caplog.text
    path.write_text('second\n')
    reconfigure(http.service, **options)
    assert 'The token of [http] was replaced' in caplog.text
    assert (status('first'), status('second')) == (401, 200)


@pytest.mark.parametrize('content', [None, ''])
def test_a_token_file_that_cannot_be_used_changes_nothing(token, content):
    http, path, options, status = token
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(errors.ConfigurationError, match='token_file'):
        reconfigure(http.service, **options)
    assert (status('first'), status('second')) == (200, 401)


@pytest.fixture
def tls(serve_http, tmp_path):
    """A daemon with certificates, and a function that makes a client.

    The client has the certificates of the moment.
    """
    certs = extenders.certificates(tmp_path)
    options = {
        'http__cert_file': str(certs.server[0]),
        'http__key_file': str(certs.server[1]),
        'http__ca_file': str(certs.ca),
    }
    http = serve_http(**options)
    made = []

    def client():
        context = ssl.create_default_context(cafile=str(certs.ca))
        context.load_cert_chain(*certs.client)
        made.append(HttpClient(http.service, http.port, context=context))
        return made[-1]

    yield http, certs, options, client
    for one in made:
        one.close()


def test_replaced_certificates_are_used_by_new_connections(
    tls, tmp_path, caplog
):
    caplog.set_level('INFO')
    http, _, options, client = tls
    old = client()
    assert old.send('GET', '/metrics')[0] == 200
    # In the places of those before, and of another CA.
    extenders.certificates(tmp_path)
    reconfigure(http.service, **options)
    assert 'The certificates of [http] were replaced' in caplog.text
    assert client().send('GET', '/metrics')[0] == 200
    # It is answered once more, and told to make another connection.
    assert old.send('GET', '/metrics')[0] == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        old.send('GET', '/metrics')


def test_connections_stay_where_no_certificate_was_replaced(tls, caplog):
    caplog.set_level('INFO')
    http, _, options, client = tls
    kept = client()
    assert kept.send('GET', '/metrics')[0] == 200
    sock = kept._conn.sock
    reconfigure(http.service, http__idle_timeout=50.0, **options)
    assert 'were replaced' not in caplog.text
    for _ in range(2):
        assert kept.send('GET', '/metrics')[0] == 200
    assert kept._conn.sock is sock
    assert http.service.daemon.http.server.clients.idle_timeout == 50.0


def test_a_key_of_another_certificate_changes_nothing(tls, tmp_path):
    http, certs, options, client = tls
    before = client()
    certificate = certs.server[0].read_bytes()
    other = tmp_path / 'other'
    other.mkdir()
    extenders.certificates(other)
    certs.server[0].write_bytes((other / 'server.pem').read_bytes())
    with pytest.raises(errors.ConfigurationError, match='does not load'):
        reconfigure(http.service, **options)
    certs.server[0].write_bytes(certificate)
    assert before.send('GET', '/metrics')[0] == 200
    assert client().send('GET', '/metrics')[0] == 200


def test_tls_is_turned_on(serve_http, tmp_path):
    http = serve_http()
    assert http.send('GET', '/metrics')[0] == 200
    certs = extenders.certificates(tmp_path)
    cert, key = map(str, certs.server)
    reconfigure(http.service, http__cert_file=cert, http__key_file=key)
    context = ssl.create_default_context(cafile=str(certs.ca))
    client = HttpClient(http.service, http.port, context=context)
    assert client.send('GET', '/metrics')[0] == 200
    client.close()


def test_limits_and_roles_are_taken(serve_http, tmp_path):
    http = serve_http()
    assert http.send('POST', '/v1/explain', EXPLAIN + b' ' * 2000)[0] == 200
    policy = tmp_path / 'policy.yaml'
    policy.write_text('"list_decisions": "role:reader"')
    options = {
        'http__max_body_bytes': 1024,
        'http__threads': 3,
        'http__roles': ['writer'],
        'oslo_policy__policy_file': str(policy),
    }
    reconfigure(http.service, **options)
    assert http.send('POST', '/v1/explain', EXPLAIN + b' ' * 2000)[0] == 413
    assert http.send('GET', '/v1/decisions')[0] == 403
    reconfigure(http.service, **{**options, 'http__roles': ['reader']})
    assert http.send('GET', '/v1/decisions')[0] == 200
    router = http.service.daemon.http.server.clients.router
    assert router._pools['api']._max_workers == 3


def test_a_request_that_is_arriving_is_answered(serve_http):
    http = serve_http()
    sock = raw_http.connect(http.port)
    body = json.dumps({'request': {}}).encode()
    sent = raw_http.post(
        '/v1/explain', f'Content-Length: {len(body)}', body=body
    )
    sock.sendall(sent[:-5])
    # Its head was read where the server knows of the connection.
    wait_until(lambda: len(http.service.daemon.http.server.clients))
    reconfigure(http.service, http__threads=1)
    sock.sendall(sent[-5:])
    assert raw_http.read_reply(sock)[0] == 200
    sock.close()


def test_no_request_fails_while_options_change(serve_http):
    http = serve_http()
    statuses = []
    stop = threading.Event()

    def ask(method, path, body):
        client = HttpClient(http.service, http.port)
        while not stop.is_set():
            statuses.append(client.send(method, path, body)[0])
        client.close()

    calls = [('GET', '/v1/decisions', None), ('POST', '/v1/explain', EXPLAIN),
             ('GET', '/metrics', None)]  # fmt: skip
    threads = [threading.Thread(target=ask, args=call) for call in calls]
    for thread in threads:
        thread.start()
    for count in range(1, 9):
        before = len(statuses)
        reconfigure(http.service, http__threads=count)
        wait_until(lambda: len(statuses) > before + 5)  # noqa: B023
    stop.set()
    for thread in threads:
        thread.join()
    assert {*statuses} == {200}


def test_pods_are_bound_at_another_api_server(serve_http):
    http = serve_http()
    pod = {'PodName': 'a', 'PodNamespace': 'b', 'PodUID': 'c', 'Node': 'd'}
    assert http.send('POST', '/extender/bind', pod)[0] == 404
    reconfigure(
        http.service,
        extender__api_server='http://127.0.0.1:1',
        extender__api_timeout=0.5,
    )
    status, answer = http.send('POST', '/extender/bind', pod)
    assert status == 200
    assert 'unreachable' in answer['Error']
    reconfigure(http.service)
    assert http.send('POST', '/extender/bind', pod)[0] == 404
