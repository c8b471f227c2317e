"""Requests that are refused, each with a named error."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.rpc import transport
from scheduler_service.rpc.client import SchedulerClient
from tests.support.documents import ADMIN, CONTEXT, GOLD_POOL, OWNER, SMALL
from tests.support.engines import store_all

import oslo_messaging  # isort: skip

NOTHING = {'vcpus': 0, 'memory_mb': 0, 'extra_specs': {'resources:VCPU': '0'}}


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
def test_error_has_a_name_when_arguments_are_wrong(
    service, method, args, name, text
):
    with pytest.raises(errors.SchedulerError) as caught:
        service.client._client.call(CONTEXT, method, **args)
    assert caught.value.name == name
    assert text in caught.value.args[0] or name == 'InvalidRequest'
    assert service.client.ping(CONTEXT)['hosts'] == 4


def test_request_is_refused_when_nested_too_deeply(service):
    nested = {}
    for _ in range(200):
        nested = {'a': nested}
    with pytest.raises(errors.PayloadTooLarge):
        service.client._client.call(
            CONTEXT, 'select_destinations', request=nested
        )


@pytest.mark.parametrize('context', [{}, {'roles': ['admin']}, {'user_id': 5}])
def test_request_is_refused_when_its_context_is_wrong(service, context):
    with pytest.raises(errors.InvalidRequest, match='context'):
        service.client.select_destinations(context, {'flavor': SMALL})


def test_request_is_refused_when_its_version_is_newer(service):
    newer = service.client._client.prepare(version='1.9', version_cap='1.9')
    with pytest.raises(errors.InvalidRequest, match=r'1\.9 is not served'):
        newer.call(CONTEXT, 'ping')


def test_client_refuses_when_the_version_cap_is_lower(service):
    bus = transport.for_client(service.conf, service.url)
    capped = SchedulerClient(service.conf, bus, version_cap='0.9')
    with pytest.raises(oslo_messaging.RPCVersionCapError):
        capped.ping(CONTEXT)


def test_naming_a_pool_is_forbidden_when_the_role_is_missing(make_service):
    service = make_service(
        pool_scheduler__scheduler_filters=['pool_id_attribute', 'random']
    )
    zone = {'name': 'a.', 'attributes': {'pool_id': GOLD_POOL}}
    with pytest.raises(errors.Forbidden) as caught:
        service.client.schedule_zone(OWNER, zone)
    assert caught.value.code == 403
    answer = service.client.schedule_zone(ADMIN, zone)
    assert answer['pool_id'] == GOLD_POOL


def test_the_text_of_an_error_is_its_sentence_once(service):
    with pytest.raises(errors.NoValidHost) as caught:
        service.client.select_destinations(
            CONTEXT, {'flavor': {'memory_mb': 10**7}}
        )
    assert str(caught.value) == caught.value.args[0]
    assert type(caught.value) is errors.NoValidHost


def test_more_instances_than_uuids_are_refused(service):
    one = '3d3fb361-4d7f-4221-adc0-f0cc2d70f05d'
    request = {'num_instances': 3, 'instance_uuids': [one]}
    with pytest.raises(errors.InvalidRequest, match='expected 3 instance'):
        service.client.select_destinations(CONTEXT, request)


@pytest.mark.parametrize('request_', [{}, {'flavor': {}}, {'flavor': NOTHING}])
def test_a_request_that_asks_for_nothing_claims_nothing(service, request_):
    with pytest.raises(errors.InvalidRequest, match='flavor: expected') as e:
        service.client.select_destinations(CONTEXT, request_)
    assert e.value.facts == {'at': 'flavor'}
    (answer,) = service.client.schedule_many(
        CONTEXT, [{'select_destinations': request_}]
    )
    assert answer['error']['facts'] == {'at': 'flavor'}
    # What would be selected may be asked for all the same.
    assert service.client.select_destinations(CONTEXT, request_, claim=False)
    assert service.client.explain(CONTEXT, request_)


def test_a_flavor_of_custom_resources_alone_is_a_request(service):
    specs = {'resources:VCPU': '0', 'resources:CUSTOM_IRON': '1'}
    with pytest.raises(errors.NoValidHost):
        service.client.select_destinations(
            CONTEXT, {'flavor': {'extra_specs': specs}}
        )


def test_a_context_without_a_project_is_named_where_one_is_needed(service):
    context = {'user_id': 'u', 'roles': ['member']}
    with pytest.raises(errors.Forbidden, match='names no project'):
        service.client.select_destinations(context, {'flavor': SMALL})
    operator = {'user_id': 'o', 'roles': ['admin']}
    assert service.client.select_destinations(operator, {'flavor': SMALL})


def test_requests_that_are_not_valid_or_not_allowed_are_traced(
    service, caplog
):
    def counted() -> tuple[int, int]:
        counters = service.client.ping(ADMIN)['counters']
        requests = counters.get('requests', {})
        return requests.get('InvalidRequest', 0), requests.get('Forbidden', 0)

    before = counted()
    invalid = {'flavor': {'vcpus': -1}, 'request_id': 'req-invalid'}
    forbidden = {'flavor': SMALL, 'force_hosts': ['compute-1']}
    with pytest.raises(errors.InvalidRequest):
        service.client.select_destinations(CONTEXT, invalid)
    stranger = {**CONTEXT, 'roles': [], 'request_id': 'req-forbidden'}
    with pytest.raises(errors.Forbidden):
        service.client.select_destinations(stranger, forbidden)
    service.client.schedule_many(
        CONTEXT, [{'select_destinations': {**invalid, 'request_id': 'r-3'}}]
    )
    scheduler = service.daemon.scheduler
    store_all(scheduler)
    for request_id, name in (
        ('req-invalid', 'InvalidRequest'),
        ('req-forbidden', 'Forbidden'),
        ('r-3', 'InvalidRequest'),
    ):
        (decision,) = scheduler.decision(request_id)
        assert decision['outcome'] == decision['error']['name'] == name
        assert decision['project_id'] == CONTEXT['project_id']
        (line,) = [
            text for text in caplog.messages
            if 'Rejected' in text and f'request {request_id},' in text
        ]  # fmt: skip
        assert f'user {CONTEXT["user_id"]}, ' in line
        assert line.endswith(f'project {CONTEXT["project_id"]})')
    assert counted() == (before[0] + 2, before[1] + 1)
