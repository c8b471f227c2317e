"""A message that the bus inside a process delivers twice."""

from __future__ import annotations

import uuid

import pytest

from tests.support import inproc_calls
from tests.support.documents import CONTEXT, SMALL


@pytest.fixture
def bus() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def service(make_service, bus):
    return make_service(url=f'inproc://{bus}/')


@pytest.fixture
def deliver(service, bus):
    """Give a function that delivers a message; it returns the reply."""

    def run(unique_id: str, redelivered: bool, method: str, **args: object):
        message = {'method': method, 'args': args, 'version': '1.0'}
        name = f'openstack/{service.conf.scheduler.topic}'
        replies = inproc_calls.send(
            f'{bus}/', name, CONTEXT, message, unique_id, redelivered
        )
        return replies.get(timeout=30)

    return run


def test_a_released_claim_is_not_made_by_the_second_delivery(service, deliver):
    wanted = str(uuid.uuid4())
    asked = {'request': {'instance_uuids': [wanted], 'flavor': SMALL}}
    first = deliver('m1', False, 'select_destinations', **asked)
    assert service.client.release(CONTEXT, [wanted]) == [wanted]
    assert deliver('m1', True, 'select_destinations', **asked) == first
    assert service.client.release(CONTEXT, [wanted]) == []


def test_a_refusal_is_the_same_with_the_second_delivery(deliver):
    asked = {'request': {'flavor': {'vcpus': 1000}}}
    first = deliver('m2', False, 'select_destinations', **asked)
    assert 'NoValidHost' in str(first)
    assert deliver('m2', True, 'select_destinations', **asked) == first
