"""Health, readiness and metrics over HTTP."""

import dataclasses
import socket

import pytest

from scheduler_service import errors
from tests.support import kube, requirements
from tests.support.documents import CONTEXT, SMALL
from tests.support.engines import store_all
from tests.support.waiting import LIMIT_S, wait_until


def test_requests_are_counted_when_a_daemon_serves(serve_http):
    http = serve_http()
    assert http.send('GET', '/healthcheck') == (200, 'OK')
    status, ready = http.send('GET', '/readyz')
    assert status == 200
    assert ready['database'] == 'ok'
    client = http.service.client
    client.select_destinations(CONTEXT, {'flavor': SMALL})
    with pytest.raises(errors.NoValidHost):
        client.select_destinations(CONTEXT, {'flavor': {'memory_mb': 10**7}})
    store_all(http.service.daemon.scheduler)
    status, text = http.send('GET', '/metrics')
    assert status == 200
    for line in (
        'scheduler_service_requests_total{outcome="chosen"} 1.0',
        'scheduler_service_requests_total{outcome="NoValidHost"} 1.0',
        'scheduler_service_hosts_up 4.0',
        'scheduler_service_filter_rejections_total{filter="RamFilter"} 1.0',
        'scheduler_service_stage_duration_seconds_count{stage="claim"} 1.0',
        'scheduler_service_batch_size_bucket{le="1.0"}',
    ):
        assert line in text, text


def test_http_requests_are_counted_by_route_and_status(serve_http):
    http = serve_http()
    asked = {'Pod': {}, 'NodeNames': ['compute-1', 'stranger']}
    http.send('POST', '/extender/filter', asked)
    http.send('POST', '/extender/prioritize', asked)
    http.send('POST', '/extender/filter', b'{"NodeNames": 5}')
    http.send('POST', '/extender/filter', b'no')
    http.send('GET', '/v1/decisions/none')
    http.send('GET', '/nothing')
    http.send('GET', '/extender/filter')
    http.send('POST', '/v1/explain', b' ' * 1_100_000)
    http.send('GET', '/readyz', None, Noise='\0')
    _, text = http.send('GET', '/metrics')
    for line in (
        'http_requests_total{route="/extender/filter",status="200"} 2.0',
        'http_requests_total{route="/extender/filter",status="400"} 1.0',
        'http_requests_total{route="/v1/decisions/{request_id}",status="404"}',
        'http_requests_total{route="other",status="404"} 1.0',
        'http_requests_total{route="refused",status="405"} 1.0',
        'http_requests_total{route="refused",status="413"} 1.0',
        'http_requests_total{route="refused",status="400"} 1.0',
        'http_request_duration_seconds_count{route="/extender/filter"} 3.0',
        'extender_verb_nodes_total{direction="received",verb="filter"} 2.0',
        'extender_verb_nodes_total{direction="returned",verb="filter"} 1.0',
        'extender_verb_nodes_total{direction="received",verb="prioritize"}',
        'extender_verb_calls_total{verb="filter"} 3.0',
        'extender_verb_calls_total{verb="prioritize"} 1.0',
        'extender_verb_calls_total{verb="preempt"} 0.0',
        'extender_verb_duration_seconds_count{verb="filter"} 3.0',
        'extender_verb_errors_total{verb="filter"} 2.0',
        'extender_verb_errors_total{verb="prioritize"} 0.0',
        'http_connections 1.0',
    ):
        assert f'scheduler_service_{line}' in text, text


def test_readiness_is_503_when_the_database_is_away(serve_http):
    http = serve_http()
    http.service.daemon.scheduler.health.degrade('database', 'gone')
    status, ready = http.send('GET', '/readyz')
    assert (status, ready['database']) == (503, 'bad')


def test_readiness_is_503_while_hosts_cannot_be_brought_up_to_date(serve_http):
    """Whatever the fault is: here no connection can be set up."""
    http = serve_http()
    daemon = http.service.daemon
    limits = daemon.store.timeouts

    def set_up_by(timeouts):
        daemon.store.timeouts = timeouts
        source = daemon.scheduler._source
        daemon.scheduler._loop.between_batches(source.drop).result()

    set_up_by(dataclasses.replace(limits, lock='word'))
    wait_until(lambda: http.send('GET', '/readyz')[0] == 503)
    _, ready = http.send('GET', '/readyz')
    assert (ready['snapshot'], ready['database']) == ('bad', 'ok')
    (text,) = ready['degraded']
    assert text.startswith('hosts cannot be brought up to date: ValueError(')
    assert http.service.client.ping(CONTEXT)['degraded'] == [text]
    set_up_by(limits)
    wait_until(lambda: http.send('GET', '/readyz')[0] == 200)
    assert http.send('GET', '/readyz')[1]['degraded'] == []


def test_nodes_are_waited_for_where_a_cluster_is_followed(serve_http):
    """The API server is away; hosts that are no nodes are none of it."""
    requirements.need_library('kubernetes')
    with socket.create_server(('127.0.0.1', 0)) as away:
        url = f'http://127.0.0.1:{away.getsockname()[1]}'
    follow = {'kubernetes__enabled': True, 'extender__api_server': url}
    http = serve_http(**follow)
    status, ready = http.send('GET', '/readyz')
    assert (status, ready['nodes'], ready['snapshot']) == (503, 'bad', 'ok')
    victims = {'compute-1': {'Pods': [{'UID': 'v'}]}}
    asked = {'Pod': kube.pod('p'), 'NodeNames': ['compute-1'],
             'NodeNameToMetaVictims': victims}  # fmt: skip
    for verb in ('filter', 'prioritize', 'preempt'):
        status, told = http.send('POST', f'/extender/{verb}', asked)
        assert (status, told['error']['name']) == (503, 'ServiceBusy')
        assert 'nodes of the cluster' in told['error']['message']
    # Others are served meanwhile.
    http.service.client.select_destinations(CONTEXT, {'flavor': SMALL})
    status, told = http.send('POST', '/extender/bind', {})
    assert (status, 'required' in told['Error']) == (200, True)


def test_stored_nodes_are_enough_while_the_api_server_is_away(serve_http):
    requirements.need_library('kubernetes')
    with socket.create_server(('127.0.0.1', 0)) as away:
        url = f'http://127.0.0.1:{away.getsockname()[1]}'
    http = serve_http(
        inventory={'hosts': [
            {'host': 'n1', 'stats': {'kubernetes_node': True}}]},
        kubernetes__enabled=True,
        extender__api_server=url,
    )  # fmt: skip
    status, ready = http.send('GET', '/readyz')
    assert (status, ready['nodes']) == (200, 'ok')
    asked = {'Pod': kube.pod('p'), 'NodeNames': ['n1']}
    status, told = http.send('POST', '/extender/filter', asked)
    assert (status, told['NodeNames']) == (200, ['n1'])


def test_nothing_is_served_when_no_port_is_set(make_service):
    service = make_service()
    assert service.daemon.http.server is None


def test_a_load_balancer_may_ask_for_the_status_alone(serve_http):
    http = serve_http()
    for path in ('/healthcheck', '/readyz', '/metrics'):
        with socket.create_connection(('127.0.0.1', http.port)) as sock:
            sock.settimeout(LIMIT_S)
            sock.sendall(
                f'HEAD {path} HTTP/1.1\r\nHost: localhost\r\n'
                'Connection: close\r\n\r\n'.encode()
            )
            reply = b''.join(iter(lambda: sock.recv(65536), b''))
        assert reply.startswith(b'HTTP/1.1 200 '), path
        assert reply.endswith(b'\r\n\r\n')


def test_connections_are_watched_again_after_a_fault(serve_http):
    http = serve_http()
    assert http.send('GET', '/healthcheck') == (200, 'OK')
    http.close()
    clients = http.service.daemon.http.server.clients
    # No reason to close a connection is counted in this: a fault.
    counts, clients.closed = clients.closed, None

    def is_seen():
        degraded = http.service.client.ping(CONTEXT)['degraded']
        return any('thread http failed' in text for text in degraded)

    wait_until(is_seen)
    clients.closed = counts
    assert http.send('GET', '/healthcheck') == (200, 'OK')
