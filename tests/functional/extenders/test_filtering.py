"""Extenders that filter, weigh and bind hosts for the daemon."""

import time
from concurrent.futures import Future
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.kube import pod_reader
from scheduler_service.kube.node_reader import NodeReader
from scheduler_service.model import documents
from scheduler_service.store import schema
from scheduler_service.store.claims import claim_queries
from tests.support import extenders, kube
from tests.support.databases import locked
from tests.support.documents import CONTEXT, INVENTORY, SMALL
from tests.support.engines import store_all
from tests.support.extenders import Reply, entry, pass_only
from tests.support.stores import claim_on, load_snapshot, write_claims
from tests.support.waiting import LIMIT_S, SLOWNESS, wait_until


def test_hosts_are_left_out_when_an_extender_rejects_them(serve_with):
    with extenders.extender(pass_only('compute-2')) as server:
        service = serve_with(entry(server))
        assert service.select_hosts() == ['compute-2']
        server.answer = pass_only()
        with pytest.raises(errors.NoValidHost) as caught:
            service.select_hosts()
        assert '4 no port' in caught.value.args[0]
        store_all(service.daemon.scheduler)
        kept = service.daemon.scheduler.decisions(5)
        assert [k['outcome'] for k in kept] == ['NoValidHost', 'chosen']


def test_extender_gets_nodes_and_pod_when_it_caches_none(serve_with):
    with extenders.extender() as server:
        service = serve_with(entry(server, nodeCacheCapable=False))
        service.select_hosts(project_id='a' * 32)
    asked = server.calls[0][1]
    assert asked['NodeNames'] is None
    nodes = asked['Nodes']['items']
    assert len(nodes) == 4
    names = {n['metadata']['labels']['topology.kubernetes.io/zone']
             for n in nodes}  # fmt: skip
    assert names == {'north', 'nova'}
    # Back again: nothing is lost on the way.
    reader = NodeReader('scheduler-service.local', {}, ())
    host = reader.read(nodes[0]).host
    assert host.memory_mb == 8192 + int(host.host[-1])
    request = pod_reader.pod_request(
        kube.read(asked['Pod']), 'scheduler-service.local'
    )
    assert request.flavor.memory_mb == 512
    assert asked['Pod']['metadata']['namespace'] == 'a' * 32


def test_extender_is_asked_for_each_instance_of_a_request(serve_with):
    with extenders.extender() as server:
        service = serve_with(entry(server))
        assert len(service.select_hosts(num_instances=3)) == 3
    assert server.verbs() == ['filter'] * 3


def test_request_fails_when_an_extender_that_counts_fails(serve_with):
    with extenders.extender(lambda *_: Reply(status=500)) as server:
        with pytest.raises(errors.ExtenderFailed) as caught:
            serve_with(entry(server)).select_hosts()
        assert caught.value.facts['reason'] == 'status'
        assert serve_with(entry(server, ignorable=True)).select_hosts()


def test_request_fails_when_an_extender_makes_up_a_node(serve_with):
    answer = Reply({'NodeNames': ['compute-77']})
    with (
        extenders.extender(lambda *_: answer) as server,
        pytest.raises(errors.ExtenderFailed, match='was not sent'),
    ):
        serve_with(entry(server)).select_hosts()


def test_no_call_is_made_when_no_extender_manages_the_resource(serve_with):
    managed = [{'name': extenders.FPGA}]
    with extenders.extender() as server:
        service = serve_with(entry(server, managedResources=managed))
        assert service.select_hosts()
        assert server.calls == []
        with pytest.raises(errors.NoValidHost):
            service.select_hosts(flavor=extenders.WITH_FPGA)


def test_extender_sees_resources_by_the_names_that_it_manages(serve_with):
    """As a kube-scheduler has them, whose configuration may be shared."""
    fpga, own = 'example.com/fpga', 'scheduler-service.local/CUSTOM_OTHER'
    documents = {
        **INVENTORY,
        'hosts': [
            {**host, 'resources': {'CUSTOM_EXAMPLE_COM_FPGA': {'total': 9},
                                   'CUSTOM_OTHER': {'total': 3}}}
            for host in INVENTORY['hosts']
        ],
    }  # fmt: skip
    specs = {
        'resources:CUSTOM_EXAMPLE_COM_FPGA': '2',
        'resources:CUSTOM_OTHER': '1',
    }
    with extenders.extender() as server:
        service = serve_with(
            entry(server, nodeCacheCapable=False,
                  managedResources=[{'name': fpga}]),
            inventory=documents,
        )  # fmt: skip
        assert service.select_hosts()
        assert server.calls == []
        assert service.select_hosts(flavor={**SMALL, 'extra_specs': specs})
    [(_, asked)] = server.calls
    [container] = asked['Pod']['spec']['containers']
    assert container['resources']['limits'] == {fpga: '2', own: '1'}
    offered = asked['Nodes']['items'][0]['status']['allocatable']
    assert {n: a for n, a in offered.items() if '/' in n} == {
        fpga: '9', own: '3'
    }  # fmt: skip


def test_scores_are_added_to_weights_when_an_extender_gives_them(serve_with):
    def answer(verb: str, asked: Any) -> Reply:
        if verb == 'prioritize':
            return Reply([{'Host': 'compute-1', 'Score': 10}])
        return extenders.pass_all(verb, asked)

    with extenders.extender(answer) as server:
        service = serve_with(
            entry(server, prioritizeVerb='prioritize', weight=100)
        )
        assert service.select_hosts() == ['compute-1']
        server.answer = lambda verb, asked: (
            Reply([{'Host': 'compute-1', 'Score': 9.5}])
            if verb == 'prioritize'
            else extenders.pass_all(verb, asked)
        )
        # A list that cannot be read adds nothing, and is counted.
        assert service.select_hosts() == ['compute-4']
    counters = service.client.ping(CONTEXT)['counters']
    calls = counters['extender_calls']
    assert calls[f'{server.url} prioritize undecodable'] == 1


def test_extender_is_asked_again_when_all_that_it_left_is_taken(serve_with):
    """It may leave others when it is sent what there is now."""
    served: list[Any] = []

    def answer(verb: str, asked: Any) -> Reply:
        if len(server.calls) > 1:
            return extenders.pass_all(verb, asked)
        # Another daemon is faster, at the only host that is left.
        store = served[0].store
        everything = {'MEMORY_MB': 8192 + 4}
        write_claims(
            store, claim_on(load_snapshot(store), 3, amounts=everything)
        )
        return pass_only('compute-4')(verb, asked)

    with extenders.extender(answer) as server:
        served.append(serve_with(entry(server)))
        (host,) = served[0].select_hosts()
    assert host in {'compute-1', 'compute-2', 'compute-3'}
    assert server.verbs() == ['filter'] * 2


def slow_to(slow: str, until: float) -> extenders.Answer:
    """Let all pass, and answer calls of a verb after a monotonic time."""

    def answer(verb: str, asked: Any) -> Reply:
        reply = extenders.pass_all(verb, asked)
        if verb == slow:
            reply.delay = max(0.0, until - time.monotonic()) + 0.01
        return reply

    return answer


def submit(service: Any, deadline: float) -> Future[Any]:
    """Have hosts selected for a caller that waits until *deadline*."""
    return service.daemon.scheduler.select_destinations(
        documents.request({'flavor': SMALL}), deadline=deadline
    )


def test_no_further_extender_is_called_when_the_caller_stopped_waiting(
    serve_with,
):
    with extenders.extender() as slow, extenders.extender() as second:
        service = serve_with(
            entry(slow, prioritizeVerb='prioritize', weight=1), entry(second)
        )
        # The first extender is asked before.
        deadline = time.monotonic() + 2 * SLOWNESS
        slow.answer = slow_to('filter', deadline)
        late = submit(service, deadline).exception(LIMIT_S)
        assert isinstance(late, errors.TooLate)
        assert slow.verbs() == ['filter']
        assert second.calls == []


def test_nothing_is_bound_when_the_caller_stopped_waiting(serve_with):
    with extenders.extender() as server:
        service = serve_with(entry(server, bindVerb='bind'))
        deadline = time.monotonic() + 2 * SLOWNESS
        # Its claim is made after the deadline.
        with locked(service.store.engine.url.database):
            late = submit(service, deadline)
            wait_until(lambda: time.monotonic() > deadline)
        assert isinstance(late.exception(LIMIT_S), errors.TooLate)
        assert server.verbs() == ['filter']
        with service.store.reading() as conn:
            assert claim_queries.listing(conn) == []


def test_a_job_that_is_bound_has_not_waited_for_the_engine(serve_with):
    with extenders.extender() as server:
        service = serve_with(entry(server, bindVerb='bind'))
        assert service.select_hosts()
        stages = service.client.ping(CONTEXT, recent=True)['recent']['stages']
        # Before the filter call, and after it.
        assert stages['wait']['count'] == 2


def test_next_host_is_tried_when_one_cannot_be_bound(serve_with):
    def answer(verb: str, asked: Any) -> Reply:
        if verb == 'bind' and asked['Node'] == 'compute-4':
            return Reply({'Error': 'the port is gone'})
        return extenders.pass_all(verb, asked)

    with extenders.extender(answer) as server:
        service = serve_with(entry(server, bindVerb='bind'))
        assert service.select_hosts() == ['compute-3']
        assert server.verbs() == ['filter', 'bind'] * 2
        with service.store.reading() as conn:
            rows = claim_queries.listing(conn)
        assert [row['host'] for row in rows] == ['compute-3']


def test_no_claim_is_left_when_no_host_can_be_bound(serve_with):
    def answer(verb: str, asked: Any) -> Reply:
        if verb == 'bind':
            return Reply({'Error': 'no'})
        return extenders.pass_all(verb, asked)

    with extenders.extender(answer) as server:
        service = serve_with(entry(server, bindVerb='bind'))
        with pytest.raises(errors.ExtenderFailed, match='to bind: no'):
            service.select_hosts()
        with service.store.reading() as conn:
            assert claim_queries.listing(conn) == []


def test_a_claim_that_may_stay_bound_is_counted_when_it_is_released(
    serve_with,
):
    def recorded() -> list[Any]:
        with service.store.reading() as conn:
            return list(conn.execute(sa.select(schema.stage_records.c.stage)))

    with extenders.extender(extenders.pass_all) as server:
        service = serve_with(entry(server, bindVerb='bind'))
        service.select_hosts()
        assert recorded() == [('bind',)]
        service.release_all()
        wait_until(lambda: recorded() == [])
        counters = service.client.ping(CONTEXT)['counters']
        assert counters['extender_binds_left'] == 1
