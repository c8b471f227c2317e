"""Requests over the bus: in-process and on RabbitMQ, call and cast."""

from __future__ import annotations

import gc
import queue
import threading
import uuid

import pytest

from scheduler_service import errors
from scheduler_service.model import HostsAnswer
from scheduler_service.rpc import transport
from scheduler_service.rpc.client import SchedulerClient
from tests.functional.conftest import (
    ADMIN,
    CONTEXT,
    DEFAULT_POOL,
    GOLD_POOL,
    SMALL,
)

import oslo_messaging  # isort: skip

BUSES = ['inproc', pytest.param('rabbit', marks=pytest.mark.broker)]


@pytest.fixture(params=BUSES)
def service(request, make_service):
    return make_service(request.param)


def hosts_of(answer):
    return [one['selected']['host'] for one in answer['placements']]


def used(service):
    return service.client.explain(CONTEXT, {})['hosts']


class TestCalls:
    def test_select_destinations_claims_and_answers(self, service):
        answer = service.client.select_destinations(
            CONTEXT, {'flavor': SMALL, 'num_instances': 2}, explain=True
        )
        assert hosts_of(answer) == ['compute-4', 'compute-3']
        first = answer['placements'][0]
        assert first['selected']['zone'] == 'nova'
        assert first['selected']['limits']['memory_mb'] == 8196
        assert [a['host'] for a in first['alternates']] == [
            'compute-2', 'compute-1',
        ]  # fmt: skip
        assert answer['explanation']['hosts'] == 4
        assert answer['explanation']['finalists'][0]['host'] == 'compute-4'

    def test_asking_again_gives_the_same_answer(self, service):
        asked = {
            'flavor': SMALL,
            'request_id': 'req-1',
            'instance_uuids': [str(uuid.uuid4())],
        }
        first = service.client.select_destinations(CONTEXT, asked)
        for _ in range(3):
            service.client.select_destinations(CONTEXT, {'flavor': SMALL})
        assert service.client.select_destinations(CONTEXT, asked) == first

    def test_without_a_claim_nothing_is_taken(self, service):
        asked = {'flavor': {**SMALL, 'memory_mb': 5000}}
        for _ in range(6):
            answer = service.client.select_destinations(
                CONTEXT, asked, claim=False
            )
            assert hosts_of(answer) == ['compute-4']

    def test_release_gives_back(self, service):
        asked = {'flavor': {**SMALL, 'memory_mb': 8000}, 'num_instances': 4}
        answer = service.client.select_destinations(CONTEXT, asked)
        with pytest.raises(errors.NoValidHost):
            service.client.select_destinations(CONTEXT, asked)
        uuids = [one['instance_uuid'] for one in answer['placements']]
        assert service.client.release(CONTEXT, uuids) == sorted(uuids)
        assert service.client.release(CONTEXT, uuids) == []
        service.client.select_destinations(CONTEXT, asked)

    def test_no_valid_host_says_why(self, service):
        with pytest.raises(errors.NoValidHost) as caught:
            service.client.select_destinations(
                CONTEXT,
                {'availability_zone': 'north',
                 'flavor': {**SMALL, 'memory_mb': 9000}},
            )  # fmt: skip
        error = caught.value
        assert error.name == 'NoValidHost'
        assert '(closest: compute-2 lacks 806 MB)' in error.args[0]
        assert error.facts['hosts'] == 4

    def test_a_zone_gets_a_pool_and_keeps_it(self, service):
        zone = {'name': 'example.org.', 'id': str(uuid.uuid4())}
        answer = service.client.schedule_zone(CONTEXT, zone, explain=True)
        assert answer['pool_id'] == DEFAULT_POOL
        assert answer['explanation']['funnel'][0]['filter'] == 'default_pool'
        again = service.client.schedule_zone(CONTEXT, zone)
        assert (again['pool_id'], again['zone_id']) == (
            DEFAULT_POOL, zone['id'],
        )  # fmt: skip

    def test_many_in_one_message_answer_each_for_itself(self, service):
        answers = service.client.schedule_many(
            CONTEXT,
            [
                {'select_destinations': {'flavor': SMALL}},
                {'select_destinations': {'flavor': {'memory_mb': 10**7}}},
                {'select_destinations': {'flavor': {'memory_mb': 'x'}}},
                {'schedule_zone': {'name': 'a.'}},
                {},
            ],
        )
        names = [one.get('error', {}).get('name') for one in answers]
        assert names == [
            None, 'NoValidHost', 'InvalidRequest', None, 'InvalidRequest',
        ]  # fmt: skip
        assert answers[0]['result']['placements']
        assert answers[3]['result']['pool_id'] == DEFAULT_POOL
        assert service.client.schedule_many(CONTEXT, []) == []

    def test_what_was_answered_is_not_kept(self, service):
        """Memory stays flat: nothing waits for the garbage collector."""
        one = {'select_destinations': {'flavor': {'memory_mb': 1}}}

        def ask_and_count() -> int:
            assert len(service.client.schedule_many(CONTEXT, [one] * 20)) == 20
            kept = [o for o in gc.get_objects() if isinstance(o, HostsAnswer)]
            return len(kept)

        ask_and_count()
        gc.collect()
        gc.disable()
        try:
            counts = [ask_and_count() for _ in range(6)]
        finally:
            gc.enable()
        # The last message's may still be in somebody's hands.
        assert max(counts) <= 40

    def test_explain_claims_nothing_and_reports_on_a_host(self, service):
        asked = {'flavor': {**SMALL, 'memory_mb': 8193}}
        answer = service.client.explain(CONTEXT, asked, host='compute-1')
        assert hosts_of(answer) == ['compute-4']
        verdicts = answer['nodes'][0]['filters']
        assert all(one['passes'] for one in verdicts)
        with pytest.raises(errors.HostNotFound):
            service.client.explain(CONTEXT, asked, host='nobody')

    def test_ping_says_who_answers(self, service):
        answer = service.client.ping(CONTEXT)
        assert (answer['hosts'], answer['database']) == (4, 'up')

    def test_an_operators_change_is_seen_within_a_second(self, service):
        from scheduler_service.store import operate

        service.store.write(
            lambda writer: operate.set_host_status(
                writer, 'compute-4', False, 'test'
            )
        )
        deadline = threading.Event()
        deadline.wait(0.5)
        answer = service.client.select_destinations(CONTEXT, {'flavor': SMALL})
        assert hosts_of(answer) == ['compute-3']


class TestRefusals:
    @pytest.mark.parametrize(
        ('method', 'args', 'name', 'text'),
        [
            ('select_destinations', {'request': {'x': 1}},
             'InvalidRequest', 'x: unknown key'),
            ('select_destinations', {'request': 5},
             'InvalidRequest', 'request: expected an object, got 5'),
            ('select_destinations', {'req': {}},
             'InvalidRequest', 'req: unknown key'),
            ('select_destinations', {},
             'InvalidRequest', 'request: required, but absent'),
            ('select_destinations',
             {'request': {'flavor': {'name': 'x' * 2_000_000}}},
             'PayloadTooLarge', 'at most 1048576'),
            ('schedule_zone', {'zone': {'name': ''}},
             'InvalidRequest', 'zone'),
            ('release', {'instances': ['x']},
             'InvalidRequest', 'instances[0]'),
            ('ping', {'x': 1}, 'InvalidRequest', 'x: unknown key'),
            ('nonsense', {}, 'InvalidRequest', 'no such method: nonsense'),
            ('_parse', {}, 'InvalidRequest', 'no such method: _parse'),
        ],
    )  # fmt: skip
    def test_bad_requests_are_named(self, service, method, args, name, text):
        with pytest.raises(errors.SchedulerError) as caught:
            service.client._client.call(CONTEXT, method, **args)
        assert caught.value.name == name
        assert text in caught.value.args[0] or name == 'InvalidRequest'
        assert service.client.ping(CONTEXT)['hosts'] == 4

    def test_deeply_nested_requests_are_refused(self, service):
        nested = {}
        for _ in range(200):
            nested = {'a': nested}
        with pytest.raises(errors.PayloadTooLarge):
            service.client._client.call(
                CONTEXT, 'select_destinations', request=nested
            )

    @pytest.mark.parametrize(
        'context', [{}, {'roles': 'admin'}, {'user_id': 5}]
    )
    def test_a_context_is_required(self, service, context):
        with pytest.raises(errors.InvalidRequest, match='context'):
            service.client.select_destinations(context, {'flavor': SMALL})

    def test_another_version_is_refused(self, service):
        newer = service.client._client.prepare(
            version='1.9', version_cap='1.9'
        )
        with pytest.raises(errors.InvalidRequest, match=r'1\.9 is not served'):
            newer.call(CONTEXT, 'ping')

    def test_the_cap_keeps_a_client_from_newer_versions(self, service):
        bus = transport.for_client(service.conf, service.url)
        capped = SchedulerClient(service.conf, bus, version_cap='0.9')
        with pytest.raises(oslo_messaging.RPCVersionCapError):
            capped.ping(CONTEXT)


class TestPolicy:
    def test_naming_the_pool_needs_a_role(self, make_service):
        service = make_service(
            pool_scheduler__scheduler_filters=['pool_id_attribute', 'random']
        )
        zone = {'name': 'a.', 'attributes': {'pool_id': GOLD_POOL}}
        with pytest.raises(errors.Forbidden) as caught:
            service.client.schedule_zone(CONTEXT, zone)
        assert caught.value.code == 403
        answer = service.client.schedule_zone(ADMIN, zone)
        assert answer['pool_id'] == GOLD_POOL


class TestCasts:
    def test_the_answer_is_cast_to_the_topic_that_is_named(self, service):
        answers = service.answers(f'conductor-{uuid.uuid4().hex}')
        topic = service.listeners[0]._target.topic
        sent = service.client.select_destinations_cast(
            CONTEXT, {'flavor': SMALL}, reply_to={'topic': topic}
        )
        told = answers.get(timeout=30)
        assert told['request_id'] == sent['request_id']
        assert told['error'] is None
        assert hosts_of(told['result']) == ['compute-4']
        service.client.schedule_zone_cast(
            CONTEXT, {'name': 'b.'},
            reply_to={'topic': topic, 'server': 'test'},
        )  # fmt: skip
        assert answers.get(timeout=30)['result']['pool_id'] == DEFAULT_POOL

    @pytest.mark.parametrize(
        ('request_', 'name'),
        [
            ({'flavor': {'memory_mb': 10**7}}, 'NoValidHost'),
            ({'flavour': {}}, 'InvalidRequest'),
        ],
    )
    def test_an_error_is_cast_too(self, service, request_, name):
        answers = service.answers(f'conductor-{uuid.uuid4().hex}')
        topic = service.listeners[0]._target.topic
        sent = service.client.select_destinations_cast(
            CONTEXT, request_, reply_to={'topic': topic}
        )
        told = answers.get(timeout=30)
        assert told['error']['name'] == name
        assert told['request_id'] == sent['request_id']
        assert told['result'] is None

    @pytest.mark.parametrize('bus', BUSES)
    def test_outcomes_are_published(self, make_service, bus):
        topic = f'n{uuid.uuid4().hex[:8]}'
        service = make_service(
            bus,
            oslo_messaging_notifications__driver=['messagingv2'],
            oslo_messaging_notifications__topics=[topic],
        )
        seen = queue.Queue()

        class Takes:
            def info(self, ctxt, publisher_id, event_type, payload, metadata):
                seen.put((event_type, payload['error']))

            error = info

        listener = oslo_messaging.get_notification_listener(
            transport.for_notifications(service.conf, service.url),
            [oslo_messaging.Target(topic=topic)],
            [Takes()],
        )
        listener.start()
        try:
            service.client.select_destinations_cast(CONTEXT, {'flavor': SMALL})
            assert seen.get(timeout=30) == (
                'scheduler.select_destinations.end', None,
            )  # fmt: skip
            service.client.select_destinations_cast(
                CONTEXT, {'flavor': {'memory_mb': 10**7}}
            )
            event, error = seen.get(timeout=30)
            assert event == 'scheduler.select_destinations.error'
            assert error['name'] == 'NoValidHost'
        finally:
            listener.stop()
            listener.wait()


@pytest.mark.db
@pytest.mark.broker
@pytest.mark.parametrize('database', ['postgresql', 'mariadb'])
def test_many_callers_on_real_servers_share_what_there_is(
    make_service, database
):
    service = make_service('rabbit', database)
    placed, refused = [], []

    def ask():
        for _ in range(10):
            try:
                answer = service.client.select_destinations(
                    CONTEXT, {'flavor': {'vcpus': 1, 'memory_mb': 500}}
                )
                placed.extend(hosts_of(answer))
            except errors.NoValidHost as error:
                refused.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # 8193 to 8196 MB hold 16 of 500 each.
    assert len(placed) == 64
    assert len(refused) == 16
    assert all(placed.count(host) == 16 for host in set(placed))


def test_decisions_are_kept_with_their_reasons(make_service):
    from scheduler_service.store import decisions

    service = make_service()
    answer = service.client.select_destinations(CONTEXT, {'flavor': SMALL})
    with pytest.raises(errors.NoValidHost):
        service.client.select_destinations(
            CONTEXT,
            {'request_id': 'req-no', 'flavor': {'memory_mb': 10**7}},
        )
    service.daemon.scheduler.flush()
    with service.store.reading() as conn:
        good = decisions.show(conn, answer['request_id'])
        bad = decisions.show(conn, 'req-no')
        with pytest.raises(errors.DecisionNotFound):
            decisions.show(conn, 'req-none')
    assert good[0]['outcome'] == 'chosen'
    assert good[0]['explanation']['finalists'][0]['host'] == 'compute-4'
    assert bad[0]['outcome'] == 'NoValidHost'
    assert bad[0]['error']['facts']['filters'][0]['filter'] == 'RamFilter'


def test_two_daemons_on_one_store_never_promise_twice(
    make_service, make_store
):
    from scheduler_service.cmd.daemon import Daemon
    from tests.functional.conftest import new_conf

    first = make_service()
    conf = new_conf(
        database__connection=str(first.store.engine.url),
        scheduler__server='second',
    )
    second = Daemon(conf, first.url)
    second.start()
    try:
        placed = []

        def ask():
            for _ in range(8):
                try:
                    answer = first.client.select_destinations(
                        CONTEXT, {'flavor': {'memory_mb': 1000}}
                    )
                    placed.extend(hosts_of(answer))
                except errors.NoValidHost:
                    continue

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(placed) == 32
        assert all(placed.count(host) == 8 for host in set(placed))
        both = (first.daemon.scheduler.status(), second.scheduler.status())
        assert all(one['requests'] for one in both)
    finally:
        second.stop()
