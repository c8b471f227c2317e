"""The request context is sent as a dict, and read as credentials."""

import time
from typing import Any

import pytest
from oslo_context import context

from scheduler_service import errors
from scheduler_service.bus.wire import request, sent_at
from scheduler_service.rpc.client import ContextSerializer, StampingSerializer
from scheduler_service.rpc.endpoints import credentials


def test_context_is_a_dict_when_it_is_sent():
    made = context.RequestContext(user_id='u', roles=['member'])
    sent = ContextSerializer().serialize_context(made)
    assert isinstance(sent, dict)
    assert (sent['user'], sent['roles']) == ('u', ['member'])
    assert ContextSerializer().serialize_context({'a': 1}) == {'a': 1}


def test_time_of_sending_is_read_when_the_context_was_stamped():
    before = time.time()
    sent = StampingSerializer().serialize_context({'user_id': 'u'})
    found = sent_at(sent)
    assert found is not None
    assert before <= found <= time.time()


def test_an_empty_context_stays_empty_when_it_is_sent():
    assert StampingSerializer().serialize_context({}) == {}


@pytest.mark.parametrize(
    ('given', 'expected'),
    [
        (1.5, 1.5),
        (-7.0, -7.0),
        (1e15, None),
        (10**400, None),
        (float('inf'), None),
        (float('nan'), None),
        ('7', None),
        (None, None),
    ],
)
def test_time_of_sending_is_a_float_when_it_is_possible(given, expected):
    found = sent_at({'scheduler_sent_at': given})
    assert found == expected
    assert type(found) is type(expected)


def test_time_of_sending_is_unknown_when_the_caller_did_not_say():
    assert sent_at({}) is None


@pytest.mark.parametrize('given', [None, 'text', 5])
def test_a_context_of_another_type_is_refused_before_it_is_sent(given):
    with pytest.raises(errors.InvalidRequest, match='context: expected') as e:
        StampingSerializer().serialize_context(given)
    assert e.value.facts == {'at': 'context'}


def test_credentials_have_identity_and_roles_when_read():
    read = credentials(
        {'user_id': 'u', 'project_id': 'p', 'roles': ('a', 'b'), 'x': 1}
    )
    assert (read['user_id'], read['project_id']) == ('u', 'p')
    assert read['roles'] == ['a', 'b']
    assert read['is_admin'] is False
    assert 'x' not in read


def test_a_service_on_its_own_behalf_needs_no_user():
    made = context.RequestContext(is_admin=True)
    assert credentials(made.to_dict())['is_admin'] is True


def test_older_names_are_read_when_the_newer_are_absent():
    content = {'method': 'ping', '_context_user': 'u', '_context_project': 'p'}
    consumer: Any = None
    properties = {'content_type': 'application/json'}
    arrived = request(consumer, content, properties, False).ctxt
    read = credentials(arrived)
    assert (read['user_id'], read['project_id']) == ('u', 'p')
    assert arrived['user'] == 'u'


@pytest.mark.parametrize('given', [1, 'true', None])
def test_caller_is_no_admin_when_the_flag_is_not_a_bool(given):
    assert credentials({'user_id': 'u', 'is_admin': given})['is_admin'] is (
        False
    )


@pytest.mark.parametrize(
    ('given', 'place'),
    [
        (None, 'context: required'),
        ({}, 'context: required'),
        ('text', 'context: required'),
        ({'user_id': 5}, 'context.user_id'),
        ({'user_id': 'a\0'}, 'context.user_id'),
        ({'user_id': 'u', 'project_id': 'p' * 256}, 'context.project_id'),
        ({'user_id': 'u', 'roles': 'admin'}, 'context.roles'),
        ({'user_id': 'u', 'roles': [1]}, 'context.roles'),
        ({'roles': ['admin']}, 'context.user_id: required'),
        ({'user_id': '', 'is_admin': 'yes'}, 'context.user_id: required'),
    ],
)
def test_context_is_refused_with_its_place_when_wrong(given, place):
    with pytest.raises(errors.InvalidRequest, match=place):
        credentials(given)
