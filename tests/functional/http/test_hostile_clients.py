"""Clients that hold connections, and others that are served meanwhile."""

import contextlib
import json
import pathlib
import re
import resource
import socket
import ssl
import threading
import time

import pytest

from tests.support import extenders, raw_http
from tests.support.servers import free_port
from tests.support.waiting import LIMIT_S, SLOWNESS, wait_until

# What a liveness probe waits unless it is told otherwise, in seconds.
PROBE_S = 1.0 * SLOWNESS
GET = b'GET /healthcheck HTTP/1.1\r\nHost: localhost\r\n\r\n'

BIND = raw_http.post(
    '/extender/bind', 'Content-Length: 58',
    body=b'{"PodName":"a","PodNamespace":"b","PodUID":"c","Node":"d"}',
)  # fmt: skip


@pytest.fixture
def held():
    """Give a stack that closes what a test connects."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.mark.parametrize('request_timeout', [60.0, 0.5])
def test_tls_is_served_when_a_connection_is_silent(
    serve_http, tmp_path, held, request_timeout
):
    certs = extenders.certificates(tmp_path)
    http = serve_http(
        http__cert_file=str(certs.server[0]),
        http__key_file=str(certs.server[1]),
        http__request_timeout=request_timeout,
    )
    silent = held.enter_context(raw_http.connect(http.port))
    if request_timeout < 1:
        assert raw_http.is_closed(silent)
    # Its sockets wait for less than a minute.
    context = ssl.create_default_context(cafile=str(certs.ca))
    raw_http.healthcheck_seconds(http.port, context, turns=1)


def test_silent_connections_count_before_their_tls_handshake(
    serve_http, tmp_path, held
):
    """An attacker needs no certificate to open them."""
    certs = extenders.certificates(tmp_path)
    http = serve_http(
        http__cert_file=str(certs.server[0]),
        http__key_file=str(certs.server[1]),
        http__max_connections_per_address=3,
        http__max_connections=6,
    )
    silent = [
        held.enter_context(raw_http.connect(http.port)) for _ in range(20)
    ]
    context = ssl.create_default_context(cafile=str(certs.ca))
    assert raw_http.healthcheck_seconds(http.port, context) < PROBE_S
    assert len(http.service.daemon.http.server.clients) <= 3
    assert raw_http.is_closed(silent[0])


def test_a_head_that_drips_ends_a_kept_connection(serve_http, held):
    http = serve_http(http__request_timeout=1.0)
    sock = held.enter_context(raw_http.connect(http.port))
    for _ in range(2):
        sock.sendall(GET)
        assert raw_http.read_reply(sock) == (200, b'OK')
    # Idle for longer than a request may take.
    time.sleep(1.5)
    with contextlib.suppress(OSError):
        for byte in GET[:-4] * 9:
            sock.sendall(bytes([byte]))
            time.sleep(0.1)
    server = http.service.daemon.http.server
    assert server.clients.closed == {'sends too slowly': 1}


def test_unfinished_tls_handshakes_are_limited(serve_http, tmp_path, held):
    """The client with most of them loses its oldest."""
    certs = extenders.certificates(tmp_path)
    http = serve_http(
        http__cert_file=str(certs.server[0]),
        http__key_file=str(certs.server[1]),
    )
    context = ssl.create_default_context(cafile=str(certs.ca))
    quiet = held.enter_context(raw_http.connect(http.port, '127.0.0.2'))
    done = held.enter_context(
        context.wrap_socket(
            raw_http.connect(http.port), server_hostname='localhost'
        )
    )
    silent = [
        held.enter_context(raw_http.connect(http.port)) for _ in range(250)
    ]
    server = http.service.daemon.http.server
    assert raw_http.healthcheck_seconds(http.port, context) < PROBE_S
    assert len(server.clients) <= 202
    assert server.clients.closed['handshake limit'] >= 51
    assert raw_http.is_closed(silent[0])
    for sock in (quiet, done, silent[-1]):
        assert not raw_http.is_closed(sock, 0.1)


@pytest.mark.parametrize('buffer', [0, 4096])
def test_clients_that_never_read_are_dropped_in_time(serve_http, held, buffer):
    """Whether the rest of the reply waits in the socket or before it."""
    http = serve_http(http__request_timeout=1.0)
    names = [f'n{number}' for number in range(1_000 if buffer else 60_000)]
    body = json.dumps({'Pod': {}, 'NodeNames': names}).encode()
    sock = held.enter_context(socket.socket())
    if buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    sock.connect(('127.0.0.1', http.port))
    # The reply, with a reason for each, is longer than what the client takes.
    sock.sendall(
        raw_http.post(
            '/extender/filter', f'Content-Length: {len(body)}', body=body
        )
    )
    server = http.service.daemon.http.server
    wait_until(lambda: server.clients.closed.get('reads too slowly'))
    wait_until(lambda: len(server.clients) == 0)


def test_clients_that_never_read_gain_no_time_by_more_requests(
    serve_http, held
):
    """They are not answered either: each of them has a thousand."""
    http = serve_http(
        http__request_timeout=1.0, http__max_connections_per_address=300
    )
    clients = http.service.daemon.http.server.clients
    for _ in range(200):
        sock = held.enter_context(socket.socket())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(LIMIT_S)
        sock.connect(('127.0.0.1', http.port))
        with contextlib.suppress(OSError):
            sock.sendall(GET * 1_000)
    assert raw_http.healthcheck_seconds(http.port) < LIMIT_S
    wait_until(lambda: clients.closed.get('reads too slowly') == 200)
    _, text = http.send('GET', '/metrics')
    (answered,) = re.findall(
        r'http_requests_total{route="/healthcheck",status="200"} (\S+)', text
    )
    assert float(answered) < 200 * 100


@pytest.mark.parametrize('idle_timeout', [2.0, 60.0])
def test_clients_that_read_slowly_have_the_time_of_idle_ones(
    serve_http, held, idle_timeout
):
    http = serve_http(
        http__request_timeout=1.0, http__idle_timeout=idle_timeout
    )
    names = [f'n{number}' for number in range(20_000)]
    body = json.dumps({'Pod': {}, 'NodeNames': names}).encode()
    sock = held.enter_context(socket.socket())
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(LIMIT_S)
    sock.connect(('127.0.0.1', http.port))
    sock.sendall(
        raw_http.post(
            '/extender/filter', f'Content-Length: {len(body)}', body=body
        )
    )
    clients = http.service.daemon.http.server.clients
    start = time.monotonic()
    with contextlib.suppress(OSError):
        while not clients.closed and time.monotonic() - start < 4:
            sock.recv(4096)
            time.sleep(0.1)
    if idle_timeout < 4:
        wait_until(lambda: clients.closed == {'reads too slowly': 1})
    else:
        assert clients.closed == {}


def test_memory_of_tls_connections_is_given_back(
    launch, ready_sqlite, tmp_path
):
    certs = extenders.certificates(tmp_path)
    context = ssl.create_default_context(cafile=str(certs.ca))
    port = free_port()
    daemon = launch(
        ready_sqlite, 'inproc://',
        f'[http]\nbind_port = {port}\n'
        f'cert_file = {certs.server[0]}\nkey_file = {certs.server[1]}\n',
    )  # fmt: skip
    daemon.wait_for('Ready')
    raw_http.healthcheck_seconds(port, context)
    statm = pathlib.Path(f'/proc/{daemon.popen.pid}/statm')

    def memory() -> int:
        return int(statm.read_text().split()[1]) * resource.getpagesize()

    before = memory()
    with contextlib.ExitStack() as held:
        for _ in range(250):
            sock = raw_http.connect(port)
            held.enter_context(
                context.wrap_socket(sock, server_hostname='localhost')
            )
        assert memory() - before < 40e6
    wait_until(lambda: memory() - before < 8e6)


def test_health_is_served_when_100_clients_are_slow(serve_http, held):
    http = serve_http(http__request_timeout=2.0)
    heads = (
        b'GET /healthcheck HTTP/1.1\r\nHo',
        raw_http.post('/extender/filter', 'Content-Length: 1000', body=b'{'),
        raw_http.post(
            '/extender/filter', 'Transfer-Encoding: chunked', body=b'400\r\n'
        ),
    )
    slow = []
    for number in range(100):
        sock = held.enter_context(raw_http.connect(http.port))
        sock.sendall(heads[number % 3])
        slow.append(sock)
    assert raw_http.healthcheck_seconds(http.port) < PROBE_S
    clients = http.service.daemon.http.server.clients

    def all_are_closed() -> bool:
        # A byte now and then buys no time.
        for sock in slow:
            with contextlib.suppress(OSError):
                sock.sendall(b'1')
        return len(clients) == 0

    wait_until(all_are_closed, pause_s=0.1)
    assert clients.closed['sends too slowly'] == 100


@pytest.mark.slow
def test_health_is_served_when_4_000_connections_are_idle(
    launch, ready_sqlite, held
):
    if not held.enter_context(raw_http.open_files(5_000)):
        pytest.skip('This process may not open 5,000 files')
    port = free_port()
    daemon = launch(
        ready_sqlite, 'inproc://',
        f'[http]\nbind_port = {port}\nmax_connections = 5000\n'
        'max_connections_per_address = 5000\n',
    )  # fmt: skip
    daemon.wait_for('Ready')
    for _ in range(4_000):
        held.enter_context(raw_http.connect(port))
    assert raw_http.healthcheck_seconds(port) < PROBE_S


def test_longest_idle_connection_is_closed_when_an_address_has_too_many(
    serve_http, held
):
    http = serve_http(http__max_connections_per_address=3)
    first, *others = (
        held.enter_context(raw_http.connect(http.port)) for _ in range(3)
    )
    # Used later than the others, so another one is the first to be closed.
    first.sendall(GET)
    assert raw_http.read_reply(first) == (200, b'OK')
    stranger = held.enter_context(raw_http.connect(http.port, '127.0.0.2'))
    stranger.sendall(GET)
    assert raw_http.read_reply(stranger) == (200, b'OK')
    fourth = held.enter_context(raw_http.connect(http.port))
    fourth.sendall(GET)
    assert raw_http.read_reply(fourth) == (200, b'OK')
    assert raw_http.is_closed(others[0])
    assert raw_http.is_kept(first)
    assert raw_http.is_kept(others[1])


def test_client_with_most_connections_loses_one_when_all_are_too_many(
    serve_http, held
):
    http = serve_http(http__max_connections=5)
    quiet = held.enter_context(raw_http.connect(http.port, '127.0.0.2'))
    flood = [
        held.enter_context(raw_http.connect(http.port)) for _ in range(20)
    ]
    quiet.sendall(GET)
    assert raw_http.read_reply(quiet) == (200, b'OK')
    assert len(http.service.daemon.http.server.clients) <= 5
    assert raw_http.is_closed(flood[0])


def test_connection_is_refused_when_there_is_none_to_close(serve_http, held):
    """The only connection waits for an API server, which says nothing."""
    api = held.enter_context(socket.create_server(('127.0.0.1', 0)))
    http = serve_http(
        extender__api_server=f'http://127.0.0.1:{api.getsockname()[1]}',
        extender__count_interval=0.0,
        http__max_connections=1,
    )
    busy = held.enter_context(raw_http.connect(http.port))
    busy.sendall(BIND)
    held.enter_context(api.accept()[0])
    refused = held.enter_context(raw_http.connect(http.port))
    assert raw_http.is_closed(refused)
    assert not raw_http.is_closed(busy, 0.1)


def test_idle_connections_live_longer_than_the_90_s_of_clients(serve_http):
    http = serve_http()
    assert http.service.daemon.http.server.clients.idle_timeout > 90


def test_replies_of_a_server_that_stops_end_their_connections(
    serve_http, monkeypatch
):
    """Their clients do not send another request to nobody."""
    http = serve_http()
    scheduler = http.service.daemon.scheduler
    explain = scheduler.explain
    begun = threading.Event()

    def slowly(*args):
        begun.set()
        time.sleep(0.5)
        return explain(*args)

    monkeypatch.setattr(scheduler, 'explain', slowly)
    with socket.create_connection(('127.0.0.1', http.port)) as sock:
        sock.settimeout(LIMIT_S)
        sock.sendall(
            b'POST /v1/explain HTTP/1.1\r\nHost: localhost\r\n'
            b'Content-Length: 15\r\n\r\n{"request": {}}'
        )
        assert begun.wait(LIMIT_S)
        http.service.daemon.http.server.end()
        head = sock.recv(65536).split(b'\r\n\r\n')[0].lower()
    assert head.startswith(b'http/1.1 200')
    assert b'connection: close' in head


def test_an_offer_to_upgrade_is_ignored(serve_http):
    http = serve_http()
    with socket.create_connection(('127.0.0.1', http.port)) as sock:
        sock.settimeout(LIMIT_S)
        sock.sendall(
            b'POST /v1/explain HTTP/1.1\r\nHost: localhost\r\n'
            b'Connection: Upgrade\r\nUpgrade: h2c\r\n'
            b'Content-Length: 15\r\n\r\n{"request": {}}'
        )
        status, body = raw_http.read_reply(sock)
    assert status == 200
    assert b'filters' in body
