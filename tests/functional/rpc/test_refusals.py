"""Requests that are refused, each with a named error."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.rpc import transport
from scheduler_service.rpc.client import SchedulerClient
from tests.support.documents import (
    ADMIN,
    CONTEXT,
    GOLD_POOL,
    SMALL,
)

import oslo_messaging  # isort: skip


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


@pytest.mark.parametrize('context', [{}, {'roles': 'admin'}, {'user_id': 5}])
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
        service.client.schedule_zone(CONTEXT, zone)
    assert caught.value.code == 403
    answer = service.client.schedule_zone(ADMIN, zone)
    assert answer['pool_id'] == GOLD_POOL
