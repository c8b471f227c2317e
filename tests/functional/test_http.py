"""The HTTP face, over real sockets: health, metrics, /v1, us as extender."""

from __future__ import annotations

import http.client
import json
import pathlib
import socket
import ssl
import threading
import time
import uuid
from typing import Any

import pytest

from scheduler_service import errors
from tests import extenders
from tests.functional.conftest import CONTEXT, SMALL
from tests.functional.test_extender_verdicts import CASES
from tests.servers import free_port

RECORDED = sorted(CASES.glob('request-*.json'))


class Face:
    """Asks one daemon over HTTP, on a connection that is kept."""

    def __init__(self, service: Any, port: int, **how: Any) -> None:
        self.service = service
        self.port = port
        self._conn: Any = (
            http.client.HTTPSConnection('localhost', port, **how)
            if how
            else http.client.HTTPConnection('127.0.0.1', port, timeout=20)
        )

    def close(self) -> None:
        self._conn.close()

    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any]:
        text = body
        if body is not None and not isinstance(body, bytes):
            text = json.dumps(body).encode()
        self._conn.request(method, path, text, headers)
        answer = self._conn.getresponse()
        found = answer.read()
        if 'json' in (answer.headers['Content-Type'] or ''):
            return answer.status, json.loads(found)
        return answer.status, found.decode()


@pytest.fixture
def make_face(make_service):
    made = []

    def make(**more: Any) -> Face:
        port = free_port()
        service = make_service(http__bind_port=port, **more)
        made.append(Face(service, port))
        return made[-1]

    yield make
    for face in made:
        face.close()


class TestHealth:
    def test_alive_ready_and_counted(self, make_face):
        face = make_face()
        assert face.ask('GET', '/healthcheck') == (200, 'OK')
        status, ready = face.ask('GET', '/readyz')
        assert status == 200
        assert ready['database'] == 'ok'
        client = face.service.client
        client.select_destinations(CONTEXT, {'flavor': SMALL})
        with pytest.raises(errors.NoValidHost):
            client.select_destinations(
                CONTEXT, {'flavor': {'memory_mb': 10**7}}
            )
        status, text = face.ask('GET', '/metrics')
        assert status == 200
        for line in (
            'scheduler_service_requests_total{outcome="chosen"} 1.0',
            'scheduler_service_requests_total{outcome="NoValidHost"} 1.0',
            'scheduler_service_filter_rejections_total{filter="RamFilter"}',
            'scheduler_service_hosts_up 4.0',
            'scheduler_service_requests_waiting 0.0',
            'scheduler_service_stage_duration_seconds_count{stage="claim"} 1',
            'scheduler_service_batch_size_bucket{le="1.0"}',
            # The names before, for one release.
            'scheduler_requests_total{outcome="chosen"} 1.0',
            'scheduler_requests_total{outcome="NoValidHost"} 1.0',
            'scheduler_filter_rejections_total{filter="RamFilter"} 1.0',
            'scheduler_hosts_up 4.0',
            'scheduler_stage_seconds_count{stage="claim"} 1.0',
            'scheduler_waiting 0.0',
            'scheduler_size_bucket{le="1.0",what="batch"}',
        ):
            assert line in text, text

    def test_not_ready_is_503(self, make_face):
        face = make_face()
        face.service.daemon.scheduler.health.degrade('database', 'gone')
        status, ready = face.ask('GET', '/readyz')
        assert (status, ready['database']) == (503, 'bad')

    def test_nothing_is_served_unless_configured(self, make_service):
        service = make_service()
        assert service.daemon._http is None


class TestV1:
    def test_explain_and_decisions(self, make_face):
        face = make_face()
        status, told = face.ask(
            'POST', '/v1/explain',
            {'request': {'flavor': {'memory_mb': 8193}}, 'host': 'compute-1'},
        )  # fmt: skip
        assert status == 200
        assert told['nodes'][0]['host'] == 'compute-1'
        face.service.client.select_destinations(
            CONTEXT, {'flavor': SMALL, 'request_id': 'req-1'}
        )
        face.service.daemon.scheduler.flush()
        status, told = face.ask('GET', '/v1/decisions?limit=5')
        assert [one['request_id'] for one in told['decisions']] == ['req-1']
        status, told = face.ask('GET', '/v1/decisions/req-1')
        assert told['decisions'][0]['explanation']['hosts'] == 4

    @pytest.mark.parametrize(
        ('method', 'path', 'body', 'code', 'name'),
        [
            ('GET', '/v1/decisions/none', None, 404, 'DecisionNotFound'),
            ('GET', '/v1/decisions?limit=x', None, 400, 'InvalidRequest'),
            ('GET', '/v1/decisions?limit=0', None, 400, 'InvalidRequest'),
            ('POST', '/v1/explain', b'{', 400, 'InvalidRequest'),
            ('POST', '/v1/explain', b'', 400, 'InvalidRequest'),
            ('POST', '/v1/explain', b'[' * 9999, 400, 'InvalidRequest'),
            ('POST', '/v1/explain', {'request': {'flavor': 1}}, 400,
             'InvalidRequest'),
            ('POST', '/v1/explain', {'request': {}, 'host': 'no'}, 404,
             'HostNotFound'),
            ('POST', '/v1/explain', b' ' * 1100000, 413, 'PayloadTooLarge'),
            ('GET', '/nothing', None, 404, 'RouteNotFound'),
            ('DELETE', '/v1/decisions', None, 405, 'MethodNotAllowed'),
            ('GET', '/extender/filter', None, 405, 'MethodNotAllowed'),
            ('POST', '/extender/filter', b'no', 400, 'InvalidRequest'),
            ('POST', '/v1/explain', b'{"request": {"project_id": "\\ud800"}}',
             400, 'InvalidRequest'),
            ('POST', '/extender/bind', b'{}', 404, 'RouteNotFound'),
        ],
    )  # fmt: skip
    def test_what_is_wrong_is_named(
        self, make_face, method, path, body, code, name
    ):
        status, told = make_face().ask(method, path, body)
        assert (status, told['error']['name']) == (code, name)

    @pytest.mark.parametrize('most', [4096, 64 * 1024 * 1024])
    def test_who_sends_on_still_reads_the_refusal(self, make_face, most):
        face = make_face(http__max_body_bytes=most)
        size = 3_000_000
        with socket.create_connection(('127.0.0.1', face.port)) as sock:
            sock.settimeout(20)
            sock.sendall(
                b'POST /v1/explain HTTP/1.1\r\nHost: a\r\n'
                b'Content-Length: %d\r\n\r\n' % size
            )
            # The answer is there, and closed, before the body comes.
            time.sleep(0.3)
            for _ in range(size // 100_000):
                sock.sendall(b' ' * 100_000)
            answer = b''.join(iter(lambda: sock.recv(65536), b''))
        assert answer.startswith(b'HTTP/1.1 413 ')


class TestGuard:
    def test_a_token_opens_all_but_health(self, make_face, tmp_path):
        (tmp_path / 'token').write_text('s3cret\n')
        face = make_face(http__token_file=str(tmp_path / 'token'))
        assert face.ask('GET', '/healthcheck')[0] == 200
        for given in (None, 'Bearer no', 'Basic s3cret', 'Bearer'):
            headers = {'Authorization': given} if given else {}
            assert face.ask('GET', '/metrics', **headers)[0] == 401
        good = {'Authorization': 'Bearer s3cret'}
        assert face.ask('GET', '/metrics', **good)[0] == 200

    def test_a_client_certificate_does_instead(self, make_face, tmp_path):
        certs = extenders.certificates(tmp_path)
        face = make_face(
            http__cert_file=str(certs.server[0]),
            http__key_file=str(certs.server[1]),
            http__ca_file=str(certs.ca),
        )
        context = ssl.create_default_context(cafile=str(certs.ca))
        stranger = Face(face.service, face.port, context=context)
        assert stranger.ask('GET', '/healthcheck')[0] == 200
        assert stranger.ask('GET', '/metrics')[0] == 401
        stranger.close()
        context.load_cert_chain(*certs.client)
        known = Face(face.service, face.port, context=context)
        assert known.ask('GET', '/metrics')[0] == 200
        known.close()

    def test_nobody_is_let_in_from_afar_without_either(self, make_service):
        with pytest.raises(errors.ConfigurationError, match='token_file'):
            make_service(http__bind_port=1, http__bind_host='0.0.0.0')


class TestConnections:
    def test_an_answer_is_one_write_and_the_connection_is_kept(
        self, make_face
    ):
        face = make_face()
        with socket.create_connection(('127.0.0.1', face.port)) as sock:
            for _ in range(3):
                sock.sendall(b'GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n')
                sock.settimeout(5)
                first = sock.recv(65536)
                assert b'\r\n\r\n{' in first
                time.sleep(0.1)

    def test_idle_connections_outlive_the_clients_90_seconds(self, make_face):
        face = make_face()
        assert face.service.daemon._http.timeout > 90

    def test_slow_clients_hold_no_thread(self, make_face):
        face = make_face(http__threads=2, http__request_timeout=1.0)
        slow = []
        for _ in range(6):
            sock = socket.create_connection(('127.0.0.1', face.port))
            sock.sendall(
                b'POST /v1/explain HTTP/1.1\r\nHost: a\r\n'
                b'Content-Length: 1000\r\n\r\n{'
            )
            slow.append(sock)
        start = time.monotonic()
        assert face.ask('GET', '/healthcheck') == (200, 'OK')
        assert time.monotonic() - start < 8
        for sock in slow:
            sock.close()


def pod(**spec: Any) -> dict[str, Any]:
    return {
        'metadata': {'name': 'a', 'namespace': 'default', 'uid': 'u'},
        'spec': {'containers': [{'name': 'c', 'resources': {
            'requests': {'cpu': '100m', 'memory': '128Mi'}}}], **spec},
    }  # fmt: skip


ZONE = 'topology.kubernetes.io/zone'


class TestExtender:
    @pytest.mark.parametrize('path', RECORDED, ids=lambda path: path.stem)
    def test_recorded_requests_are_answered_in_their_form(
        self, make_face, path
    ):
        told = json.loads(path.read_text())
        verb = path.stem.split('-')[1]
        if verb == 'bind':
            return
        status, answer = make_face().ask(
            'POST', f'/extender/{verb}', told['request']
        )
        assert status == 200
        asked = told['request']
        if verb == 'preempt':
            assert list(answer) == ['NodeNameToMetaVictims']
            return
        names = asked['NodeNames'] or [
            one['metadata']['name'] for one in asked['Nodes']['items']
        ]
        if verb == 'prioritize':
            assert [one['Host'] for one in answer] == names
            assert all(
                isinstance(one['Score'], int) and 0 <= one['Score'] <= 10
                for one in answer
            )
            return
        assert set(answer) == {
            'Nodes', 'NodeNames', 'FailedNodes', 'FailedAndUnresolvableNodes',
            'Error',
        }  # fmt: skip
        assert answer['Error'] == ''
        if asked['NodeNames'] is None:
            assert answer['NodeNames'] is None
            assert answer['Nodes']['items'] == asked['Nodes']['items']
        else:
            assert answer['Nodes'] is None
            # They are not in our store, and come by name alone.
            assert answer['FailedNodes'].keys() == set(names)

    def test_hosts_of_the_store_are_judged_by_the_store(self, make_face):
        face = make_face()
        names = [f'compute-{n}' for n in (3, 1, 2)] + ['stranger']
        asked = {
            'Pod': pod(nodeSelector={ZONE: 'north'}),
            'Nodes': None, 'NodeNames': names,
        }  # fmt: skip
        _, answer = face.ask('POST', '/extender/filter', asked)
        assert answer['NodeNames'] == ['compute-1', 'compute-2']
        assert (
            'AvailabilityZoneFilter'
            in (answer['FailedAndUnresolvableNodes']['compute-3'])
        )
        assert 'not known' in answer['FailedNodes']['stranger']
        asked['NodeNames'] = names[:3]
        _, scores = face.ask('POST', '/extender/prioritize', asked)
        # The one with most memory has 10, the one with least 0.
        assert scores == [
            {'Host': 'compute-3', 'Score': 10},
            {'Host': 'compute-1', 'Score': 0},
            {'Host': 'compute-2', 'Score': 5},
        ]

    def test_strange_nodes_are_judged_by_their_objects(self, make_face):
        items = [
            {'metadata': {'name': f'n{at}', 'labels': {ZONE: zone}},
             'spec': {'unschedulable': at == 2},
             'status': {'allocatable': {'cpu': '4', 'memory': '8Gi'}}}
            for at, zone in enumerate(['a', 'b', 'b', 'b'])
        ]  # fmt: skip
        asked = {
            'pod': pod(nodeSelector={ZONE: 'b'}),
            'NODES': {'Items': items}, 'nodenames': None,
        }  # fmt: skip
        _, answer = make_face().ask('POST', '/extender/filter', asked)
        assert answer['Nodes']['items'] == [items[1], items[3]]
        never = answer['FailedAndUnresolvableNodes']
        assert set(never) == {'n0', 'n2'}
        assert 'disabled' in never['n2']

    def test_what_cannot_be_read_is_said_with_200(self, make_face):
        face = make_face()
        asked = {'Pod': pod(), 'NodeNames': ['compute-1'], 'Nodes': None}
        asked['Pod']['spec']['containers'][0]['resources'] = {
            'requests': {'cpu': '1x%d'}
        }
        status, answer = face.ask('POST', '/extender/filter', asked)
        assert status == 200
        assert answer['NodeNames'] is None
        assert 'is not a quantity' in answer['Error']
        assert '%' not in answer['Error']
        status, answer = face.ask('POST', '/extender/prioritize', asked)
        assert (status, answer) == (200, [])

    def test_half_a_surrogate_pair_is_mended(self, make_face):
        text = b'{"Pod": {}, "Nodes": null, "NodeNames": ["a\\ud800"]}'
        status, answer = make_face().ask('POST', '/extender/filter', text)
        assert status == 200
        assert list(answer['FailedNodes']) == ['a\ufffd']

    def test_no_nodes_is_no_node(self, make_face):
        asked = {'Pod': pod(), 'Nodes': {'items': None}, 'NodeNames': None}
        _, answer = make_face().ask('POST', '/extender/filter', asked)
        assert answer['Nodes'] == {'metadata': {}, 'items': []}

    def test_binding_is_done_once(self, make_face, tmp_path):
        """A stand-in for an API server: there is no real one to be had."""
        bound: dict[str, str] = {}

        class Api(extenders.http.server.BaseHTTPRequestHandler):
            protocol_version = 'HTTP/1.1'

            def do_POST(self) -> None:
                size = int(self.headers['Content-Length'])
                asked = json.loads(self.rfile.read(size))
                name = asked['metadata']['name']
                if self.headers['Authorization'] != 'Bearer t':
                    self._say(403, {'message': 'who are you'})
                elif name in bound:
                    self._say(409, {'message': 'already bound'})
                else:
                    bound[name] = asked['target']['name']
                    self._say(201, {})

            def do_GET(self) -> None:
                name = self.path.rsplit('/', 1)[-1]
                spec = {'nodeName': bound[name]}
                self._say(200, {'metadata': {'uid': 'u'}, 'spec': spec})

            def _say(self, status: int, document: Any) -> None:
                text = json.dumps(document).encode()
                self.send_response(status)
                self.send_header('Content-Length', str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        server = extenders.http.server.ThreadingHTTPServer(
            ('127.0.0.1', 0), Api
        )
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        token = pathlib.Path(tmp_path / 'token')
        token.write_text('t')
        try:
            face = make_face(
                extender__api_server=f'http://127.0.0.1:{server.server_port}',
                extender__api_token_file=str(token),
            )

            def bind(node: str) -> str:
                asked = {'PodName': 'a', 'PodNamespace': 'default',
                         'PodUID': 'u', 'Node': node}  # fmt: skip
                status, answer = face.ask('POST', '/extender/bind', asked)
                assert status == 200
                return answer['Error']

            assert bind('n1') == ''
            assert bind('n1') == ''
            assert 'already bound' in bind('n2')
            token.write_text('wrong')
            assert 'who are you' in bind('n1')
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class TestFuzz:
    def test_malformed_requests_crash_nothing(self, make_face):
        """The small form of benchmarks.fuzz, over real sockets."""
        from tests import fuzzing

        face = make_face(http__request_timeout=2.0)
        told = fuzzing.http_face(face.port, 400, seed=5)
        assert told['server_errors'] == []
        assert face.ask('GET', '/healthcheck') == (200, 'OK')

    def test_openapi_describes_what_v1_does(self, make_face):
        import schemathesis
        from hypothesis import HealthCheck, Phase, given, settings
        from schemathesis.specs.openapi.checks import (
            positive_data_acceptance,
        )

        face = make_face()
        face.service.client.select_destinations(
            CONTEXT, {'flavor': SMALL, 'request_id': f'req-{uuid.uuid4()}'}
        )
        face.service.daemon.scheduler.flush()
        base = f'http://127.0.0.1:{face.port}'
        schema = schemathesis.openapi.from_url(f'{base}/v1/openapi.json')

        quietly = settings(
            max_examples=25,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        for result in schema.get_all_operations():

            @quietly
            @given(case=result.ok().as_strategy())
            def check(case: Any) -> None:
                # A schema cannot say that text has no NUL, or that uuids
                # differ: those are refused too.
                case.call_and_validate(
                    base_url=base, excluded_checks=[positive_data_acceptance]
                )

            check()
