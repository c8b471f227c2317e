"""Our scheduler and a real HTTP extender: asked, obeyed, missed, bound."""

from __future__ import annotations

import base64
import json
import statistics
import threading
import time
import uuid
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.extender import config, objects, reading
from scheduler_service.model import documents
from tests import extenders
from tests.extenders import Reply
from tests.functional.conftest import CONTEXT, SMALL

FPGA = 'scheduler-service.local/CUSTOM_FPGA'
WITH_FPGA = {'extra_specs': {'resources:CUSTOM_FPGA': '1'}}


@pytest.fixture
def ask(make_service, tmp_path):
    """Give a function that starts a service with extenders."""

    def make(*listed: dict[str, Any], policy: Any = None, **more: Any) -> Any:
        document = policy or {
            'apiVersion': 'kubescheduler.config.k8s.io/v1',
            'kind': 'KubeSchedulerConfiguration',
            'extenders': list(listed),
        }
        path = tmp_path / f'{uuid.uuid4().hex}.json'
        path.write_text(json.dumps(document))
        return make_service(extender__policy_file=str(path), **more)

    return make


def one(server: Any, **more: Any) -> dict[str, Any]:
    return {'urlPrefix': server.url, 'filterVerb': 'filter',
            'nodeCacheCapable': True, 'httpTimeout': '2s', **more}  # fmt: skip


def chosen(service: Any, **request: Any) -> list[str]:
    answer = service.client.select_destinations(
        CONTEXT, {'flavor': SMALL, **request}
    )
    return [p['selected']['host'] for p in answer['placements']]


def only(*names: str) -> Any:
    def answer(verb: str, asked: Any) -> Reply:
        if verb != 'filter':
            return extenders.pass_all(verb, asked)
        sent = asked['NodeNames']
        return Reply({
            'NodeNames': [name for name in sent if name in names],
            'FailedNodes': {n: 'no port' for n in sent if n not in names},
        })  # fmt: skip

    return answer


class TestFilter:
    def test_its_word_counts_and_reaches_the_caller(self, ask):
        with extenders.extender(only('compute-2')) as server:
            service = ask(one(server))
            assert chosen(service) == ['compute-2']
            server.answer = only()
            with pytest.raises(errors.NoValidHost) as caught:
                chosen(service)
            assert '4 no port' in caught.value.args[0]
            service.daemon.scheduler.flush()
            kept = service.daemon.scheduler.decisions(5)
            assert [k['outcome'] for k in kept] == ['NoValidHost', 'chosen']

    def test_it_sees_the_host_and_the_request(self, ask):
        with extenders.extender() as server:
            service = ask(one(server, nodeCacheCapable=False))
            chosen(service, project_id='a' * 32)
        asked = server.calls[0][1]
        assert asked['NodeNames'] is None
        nodes = asked['Nodes']['items']
        assert len(nodes) == 4
        names = {n['metadata']['labels']['topology.kubernetes.io/zone']
                 for n in nodes}  # fmt: skip
        assert names == {'north', 'nova'}
        # Back again: nothing is lost on the way.
        host, _ = reading.node_host(nodes[0], 'scheduler-service.local')
        assert host.memory_mb == 8192 + int(host.host[-1])
        request = reading.pod_request(asked['Pod'], 'scheduler-service.local')
        assert request.flavor.memory_mb == 512
        assert asked['Pod']['metadata']['namespace'] == 'a' * 32

    def test_every_instance_is_asked_about_in_turn(self, ask):
        with extenders.extender() as server:
            service = ask(one(server))
            assert len(chosen(service, num_instances=3)) == 3
        assert server.verbs() == ['filter'] * 3

    def test_a_failure_fails_the_request_unless_ignorable(self, ask):
        with extenders.extender(lambda *_: Reply(status=500)) as server:
            with pytest.raises(errors.ExtenderFailed) as caught:
                chosen(ask(one(server)))
            assert caught.value.facts['reason'] == 'status'
            assert chosen(ask(one(server, ignorable=True)))

    def test_a_made_up_node_is_refused(self, ask):
        answer = Reply({'NodeNames': ['compute-77']})
        with (
            extenders.extender(lambda *_: answer) as server,
            pytest.raises(errors.ExtenderFailed, match='was not sent'),
        ):
            chosen(ask(one(server)))

    def test_a_request_that_concerns_nobody_makes_no_call(self, ask):
        managed = [{'name': FPGA}]
        with extenders.extender() as server:
            service = ask(one(server, managedResources=managed))
            assert chosen(service)
            assert server.calls == []
            with pytest.raises(errors.NoValidHost):
                chosen(service, flavor=WITH_FPGA)


class TestPrioritize:
    def test_scores_are_added_to_our_weights(self, ask):
        def answer(verb: str, asked: Any) -> Reply:
            if verb == 'prioritize':
                return Reply([{'Host': 'compute-1', 'Score': 10}])
            return extenders.pass_all(verb, asked)

        with extenders.extender(answer) as server:
            service = ask(one(server, prioritizeVerb='prioritize', weight=100))
            assert chosen(service) == ['compute-1']
            server.answer = lambda verb, asked: (
                Reply([{'Host': 'compute-1', 'Score': 9.5}])
                if verb == 'prioritize'
                else extenders.pass_all(verb, asked)
            )
            # A list that cannot be read adds nothing, and is counted.
            assert chosen(service) == ['compute-4']
        counters = service.client.ping(CONTEXT)['counters']
        calls = counters['extender_calls']
        assert calls[f'{server.url} prioritize undecodable'] == 1


class TestBind:
    def test_what_cannot_be_bound_is_given_back_and_tried_elsewhere(self, ask):
        def answer(verb: str, asked: Any) -> Reply:
            if verb == 'bind' and asked['Node'] == 'compute-4':
                return Reply({'Error': 'the port is gone'})
            return extenders.pass_all(verb, asked)

        with extenders.extender(answer) as server:
            service = ask(one(server, bindVerb='bind'))
            assert chosen(service) == ['compute-3']
            assert server.verbs() == ['filter', 'bind'] * 2
            with service.store.reading() as conn:
                from scheduler_service.store import claim_rows

                rows = claim_rows.listing(conn)
            assert [row['host'] for row in rows] == ['compute-3']

    def test_nowhere_to_bind_is_an_error_and_leaves_no_claim(self, ask):
        def answer(verb: str, asked: Any) -> Reply:
            if verb == 'bind':
                return Reply({'Error': 'no'})
            return extenders.pass_all(verb, asked)

        with extenders.extender(answer) as server:
            service = ask(one(server, bindVerb='bind'))
            with pytest.raises(errors.ExtenderFailed, match='to bind: no'):
                chosen(service)
            from scheduler_service.store import claim_rows

            with service.store.reading() as conn:
                assert claim_rows.listing(conn) == []


class TestWaiting:
    def test_one_that_hangs_holds_up_nobody_else(self, ask):
        def answer(verb: str, asked: Any) -> Reply:
            return Reply(delay=30)

        managed = [{'name': FPGA}]
        with extenders.extender(answer) as server:
            service = ask(one(server, managedResources=managed))
            service.client.call(
                CONTEXT, 'update_host_state', hosts=[
                    {'host': 'compute-1',
                     'resources': {'CUSTOM_FPGA': {'total': 9}}}],
            )  # fmt: skip
            time.sleep(1.2)
            failed: list[str] = []

            def hang() -> None:
                try:
                    chosen(service, flavor=WITH_FPGA)
                except errors.ExtenderFailed as error:
                    failed.append(error.facts['reason'])

            threads = [threading.Thread(target=hang) for _ in range(6)]
            for thread in threads:
                thread.start()
            took = []
            for _ in range(20):
                start = time.perf_counter()
                chosen(service, flavor={'memory_mb': 1})
                took.append(time.perf_counter() - start)
            for thread in threads:
                thread.join()
            assert statistics.median(took) < 1.0
            assert failed == ['timeout'] * 6

    def test_connections_are_kept(self, ask):
        with extenders.extender() as server:
            service = ask(one(server))
            for _ in range(5):
                chosen(service)
            assert server.connections == 1


class TestTls:
    def test_with_certificates_both_ways(self, ask, tmp_path):
        certs = extenders.certificates(tmp_path)
        context = certs.server_context(clients=True)
        with extenders.extender(only('compute-1'), context) as server:
            tls = {
                'caFile': str(certs.ca), 'serverName': 'localhost',
                'certData': _data(certs.client[0]),
                'keyData': _data(certs.client[1]),
            }  # fmt: skip
            assert chosen(ask(one(server, tlsConfig=tls))) == ['compute-1']
            del tls['certData'], tls['keyData']
            with pytest.raises(errors.ExtenderFailed):
                chosen(ask(one(server, tlsConfig=tls)))

    def test_material_that_does_not_load_stops_the_start(self, ask):
        told = {'urlPrefix': 'https://localhost/x', 'filterVerb': 'f',
                'tlsConfig': {'caFile': '/nowhere'}}  # fmt: skip
        with pytest.raises(
            errors.ConfigurationError, match='certificates or key do not load'
        ):
            ask(told)


def _data(path: Any) -> str:
    return base64.b64encode(path.read_bytes()).decode()


class TestPolicy:
    def test_predicates_and_priorities_take_the_place_of_ours(self, ask):
        service = ask(policy={
            'kind': 'Policy', 'apiVersion': 'v1',
            'predicates': [{'name': 'PodFitsResources'}],
            'priorities': [{'name': 'MostRequestedPriority', 'weight': 2}],
        })  # fmt: skip
        pipeline = service.daemon.scheduler._hosts.pipeline
        assert [one.name for one in pipeline.filters] == [
            'ComputeFilter', 'CoreFilter', 'RamFilter', 'DiskFilter',
        ]  # fmt: skip
        assert pipeline.settings.ram_weight_multiplier == -2.0
        assert chosen(service) == ['compute-1']

    @pytest.mark.parametrize(
        ('policy', 'text'),
        [
            ({'kind': 'Policy', 'predicates': [{'name': 'NoDiskConflict'}]},
             'NoDiskConflict: nothing here does the same'),
            ({'kind': 'Policy', 'priorities': [
                {'name': 'ImageLocalityPriority', 'weight': 1}]},
             'ImageLocalityPriority'),
            ({'kind': 'Policy', 'priorities': [{'name': 'EqualPriority'}]},
             'priorities[0].weight: expected a positive'),
            ({'kind': 'Other'}, 'kind: expected Policy'),
            ({'kind': 'Policy', 'extenders': [{'urlPrefix': 'ftp://x'}]},
             'extenders[0].urlPrefix'),
            ({'kind': 'Policy', 'extenders': [
                {'urlPrefix': 'http://x', 'httpTimeout': '5s'}]},
             'extenders[0].httpTimeout: expected a int'),
        ],
    )  # fmt: skip
    def test_what_cannot_be_followed_is_refused(self, ask, policy, text):
        with pytest.raises(errors.ConfigurationError) as caught:
            ask(policy=policy)
        assert text in str(caught.value)

    def test_the_older_form_is_read_in_any_case(self):
        found = config.read(json.dumps({
            'Kind': 'x', 'kind': 'Policy', 'extenders': [{
                'URLPREFIX': 'http://a/', 'FilterVerb': 'f',
                'HttpTimeout': 30000000000, 'EnableHttps': True,
                'ignoreable': True,
                'TlsConfig': {'Insecure': True, 'ServerName': 'b'},
            }],
        }).replace('"Kind": "x", ', '').encode(), 'p')  # fmt: skip
        (made,) = found.extenders
        assert made.url('f') == 'http://a/f'
        assert (made.timeout, made.enable_https) == (30.0, True)
        assert made.tls.server_name == 'b'
        assert found.unknown == ('extenders[0].ignoreable',)


class TestObjects:
    def test_names_are_legal_and_differ(self):
        from scheduler_service.testing.builders import table

        hosts = table({'hosts': [
            {'host': 'A_b', 'hypervisor_hostname': name}
            for name in ('Node_1', 'node-1', '-x-', '..')
        ]})  # fmt: skip
        names = objects.node_names(hosts)
        assert names[0] == 'node-1'
        assert names[1].startswith('node-1-')
        assert names[2:] == ['x', 'node']

    def test_a_pods_amounts(self):
        def asks(cpu: str, **more: Any) -> dict[str, Any]:
            return {'resources': {'requests': {'cpu': cpu}}, **more}

        amounts = reading.pod_amounts({'spec': {
            'containers': [asks('1'), asks('500m')],
            'initContainers': [
                asks('200m', restartPolicy='Always'), asks('2'),
            ],
            'overhead': {'cpu': '100m'},
        }})  # fmt: skip
        assert str(amounts['cpu'].normalize()) == '2.3'

    def test_a_request_in_an_annotation_counts(self):
        told = {'flavor': {'vcpus': 3}, 'availability_zone': 'z'}
        pod = {'metadata': {'annotations': {'d/request': json.dumps(told)}}}
        found = reading.pod_request(pod, 'd')
        assert found.flavor == documents.request(told).flavor
