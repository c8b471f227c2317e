"""What hosts tell over the bus, and what becomes of it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.engine import host_state_writer
from scheduler_service.engine.factory import build
from scheduler_service.store import claim_rows, loading
from scheduler_service.store.connection import Store
from tests.functional.conftest import CONTEXT, SMALL, new_conf

BUSES = ['inproc', pytest.param('rabbit', marks=pytest.mark.broker)]


@pytest.fixture(params=BUSES)
def service(request, make_service):
    return make_service(request.param)


def until(look: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Look until it is true; return what was seen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f'not within {seconds} s')


def host(store: Store, name: str = 'compute-1') -> Any:
    with store.reading() as conn:
        return {h.host: h for h in loading.hosts(conn).values()}.get(name)


def state_of(store: Store, uuid: str) -> Any:
    with store.reading() as conn:
        try:
            return claim_rows.show(conn, uuid)['state']
        except errors.ClaimNotFound:
            return None


class TestTold:
    def test_reports_reach_the_store_and_the_decisions(self, service):
        service.client.cast(
            CONTEXT, 'update_host_state', hosts=[
                {'host': 'compute-4', 'memory_mb_used': 8100},
                {'host': 'compute-9', 'vcpus': 8, 'memory_mb': 32000,
                 'local_gb': 100, 'ram_allocation_ratio': 1.0},
            ],
        )  # fmt: skip
        until(lambda: host(service.store, 'compute-9'))
        until(lambda: host(service.store, 'compute-4').memory_mb_used == 8100)

        def chosen():
            answer = service.client.select_destinations(
                CONTEXT, {'flavor': SMALL}, claim=False
            )
            return answer['placements'][0]['selected']['host'] == 'compute-9'

        until(chosen)

    def test_a_claim_is_confirmed_when_its_host_has_the_instance(
        self, service
    ):
        answer = service.client.select_destinations(CONTEXT, {'flavor': SMALL})
        placed = answer['placements'][0]
        uuid_, name = placed['instance_uuid'], placed['selected']['host']
        assert state_of(service.store, uuid_) == 'claimed'
        call = service.client.call
        changed = call(
            CONTEXT, 'update_instance_info', host_name=name,
            instance_info={'uuid': uuid_.upper(), 'task_state': 'spawning'},
        )  # fmt: skip
        assert changed == 1
        assert state_of(service.store, uuid_) == 'confirmed'
        assert call(CONTEXT, 'delete_instance_info', host_name=name,
                   instance_uuid=uuid_) == [uuid_]  # fmt: skip
        assert state_of(service.store, uuid_) is None
        assert host(service.store, name).memory_mb_used == 0

    def test_sync_and_aggregates(self, service):
        call = service.client.call
        one = str(uuid.uuid4())
        told = {'host_name': 'compute-2', 'instance_uuids': [one]}
        assert call(CONTEXT, 'sync_instance_info', **told) == [one]
        assert call(CONTEXT, 'sync_instance_info', **told) == []
        documents = [{'id': 5, 'name': 'new', 'hosts': ['compute-3'],
                      'metadata': {'availability_zone': 'south'}}]  # fmt: skip
        put = {'aggregates': documents}
        assert call(CONTEXT, 'update_aggregates', **put) == 1
        assert call(CONTEXT, 'update_aggregates', **put) == 0

        def answer():
            return service.client.select_destinations(
                CONTEXT, {'flavor': SMALL, 'availability_zone': 'south'},
                claim=False,
            )  # fmt: skip

        time.sleep(0.3)
        assert answer()['placements'][0]['selected']['host'] == 'compute-3'
        assert call(CONTEXT, 'delete_aggregate', aggregate=5) == 1
        time.sleep(0.3)
        with pytest.raises(errors.NoValidHost):
            answer()

    @pytest.mark.parametrize(
        ('method', 'args', 'text'),
        [
            ('update_host_state', {'hosts': [{'vcpus': 1}]},
             'hosts[0].host: required'),
            ('update_host_state', {'hosts': [{'host': 'a', 'vcpus': -1}]},
             'hosts[0].vcpus: expected an integer >= 0'),
            ('update_host_state', {'hosts': [{'host': 'a', 'given': 1}]},
             'hosts[0].given: unknown key'),
            ('update_host_state',
             {'hosts': [{'host': 'a', 'hypervisor_version': 10**30}]},
             'hosts[0].hypervisor_version'),
            ('heartbeat', {'hosts': ['a\0']}, 'hosts[0]'),
            ('heartbeat', {'hosts': ['x' * 300]}, 'hosts[0]'),
            ('update_instance_info',
             {'host_name': 'a', 'instance_info': {'uuid': 'no'}},
             'instance_info[0].uuid'),
            ('update_instance_info',
             {'host_name': 'a',
              'instance_info': {'uuid': str(uuid.uuid4()), 'host': 'b'}},
             "is on 'b'"),
            ('delete_aggregate', {'aggregate': {'id': 'x'}}, 'an id'),
            ('delete_aggregate', {'aggregate': {'id': True}}, 'an id'),
            ('sync_instance_info', {'host_name': 'a'}, 'instance_uuids'),
        ],
    )  # fmt: skip
    def test_what_cannot_be_understood_is_refused_with_its_place(
        self, make_service, method, args, text
    ):
        service = make_service()
        with pytest.raises(errors.InvalidRequest) as caught:
            service.client.call(CONTEXT, method, **args)
        assert text in str(caught.value.args[0])

    def test_one_bad_report_does_not_hold_up_the_others(
        self, make_service, monkeypatch
    ):
        service = make_service()
        write = host_state_writer.host_reports.write

        def fails(writer, reports):
            if any(one.host == 'bad' for one in reports):
                raise ValueError('cannot be kept')
            return write(writer, reports)

        monkeypatch.setattr(host_state_writer.host_reports, 'write', fails)
        service.client.cast(
            CONTEXT, 'update_host_state',
            hosts=[{'host': 'good-1'}, {'host': 'bad'}, {'host': 'good-2'}],
        )  # fmt: skip
        until(lambda: host(service.store, 'good-2'))
        assert host(service.store, 'good-1')
        assert host(service.store, 'bad') is None
        counters = service.client.ping(CONTEXT)['counters']
        assert counters['host_reports_rejected'] == 1


class TestLife:
    def test_move_confirm_and_drop_over_the_bus(self, service):
        answer = service.client.select_destinations(CONTEXT, {'flavor': SMALL})
        first = answer['placements'][0]
        one = first['instance_uuid']
        asked = {'flavor': SMALL, 'instance_uuids': [one]}

        def move():
            answer = service.client.select_destinations(
                CONTEXT, asked, move=True
            )
            return answer['placements'][0]

        moved = move()
        assert moved['selected']['host'] != first['selected']['host']
        # Asked again, the same place is answered for the same move.
        assert move() == moved
        assert service.client.drop_moves(CONTEXT, [one]) == [one]
        assert service.client.drop_moves(CONTEXT, [one]) == []
        again = service.client.select_destinations(CONTEXT, asked)
        assert again['placements'][0] == first
        moved = move()
        assert service.client.confirm(CONTEXT, [one]) == [one]
        again = service.client.select_destinations(CONTEXT, asked)
        assert again['placements'][0] == moved
        assert service.client.release(CONTEXT, [one]) == [one]

    def test_a_claim_expires_that_nobody_confirms(self, make_service):
        service = make_service(scheduler__claim_timeout=1.0)
        answers = [
            service.client.select_destinations(CONTEXT, {'flavor': SMALL})
            for _ in range(2)
        ]
        kept, lost = (a['placements'][0]['instance_uuid'] for a in answers)
        service.client.confirm(CONTEXT, [kept])
        until(lambda: state_of(service.store, lost) is None)
        assert state_of(service.store, kept) == 'confirmed'
        status = service.client.ping(CONTEXT)
        assert status['counters']['claims_expired'] == 1


class TestSilence:
    def test_a_silent_host_is_down_for_all_and_comes_back(self, make_service):
        """Two daemons on one store; the second hears nothing itself."""
        service = make_service(scheduler__service_down_time=1.5)
        conf = new_conf(
            database__connection=service.store.engine.url.render_as_string(
                hide_password=False
            ),
            scheduler__service_down_time=1.5,
        )
        other = build(conf, service.store)
        other.start()

        def beat(*hosts: str) -> None:
            service.client.call(CONTEXT, 'heartbeat', hosts=list(hosts))

        def passed(scheduler: Any) -> int:
            report = scheduler.explain(
                _request({'flavor': SMALL})
            ).result(10)  # fmt: skip
            return report['passed']

        def _request(document: Any) -> Any:
            from scheduler_service.model import documents

            return documents.request(document)

        try:
            beat('compute-1', 'compute-2')
            deadline = time.monotonic() + 8
            while host(service.store).state == 'up':
                assert time.monotonic() < deadline
                beat('compute-2')
                time.sleep(0.1)
            both = [service.daemon.scheduler, other]
            until(lambda: [passed(one) for one in both] == [3, 3], 1.0)
            # Hosts that never sent any are what their document says.
            assert host(service.store, 'compute-3').state == 'up'
            beat('compute-1', 'compute-2')
            until(lambda: host(service.store).state == 'up', 2.0)
            until(lambda: [passed(one) for one in both] == [4, 4], 1.0)
        finally:
            other.stop()

    def test_nobody_is_silent_while_nobody_listened(self, make_service):
        service = make_service(scheduler__service_down_time=1.0)
        service.client.call(CONTEXT, 'heartbeat', hosts=['compute-1'])
        until(
            lambda: (
                service.daemon.scheduler.reporter._buffer.heartbeats == set()
            )
        )
        for _ in range(20):
            service.daemon.scheduler.reporter.reset_liveness()
            time.sleep(0.1)
        assert host(service.store).state == 'up'
        until(lambda: host(service.store).state == 'down', 5.0)
