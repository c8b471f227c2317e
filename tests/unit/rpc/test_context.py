"""The request context is sent as a dict."""

import time

import pytest
from oslo_context import context

from scheduler_service import errors
from scheduler_service.bus.wire import sent_at
from scheduler_service.rpc.authorization import credentials
from scheduler_service.rpc.client import (
    ContextSerializer,
    StampingSerializer,
)


def test_context_is_a_dict_when_it_is_sent():
    made = context.RequestContext(user_id='u', roles=['member'])
    sent = ContextSerializer().serialize_context(made)
    assert isinstance(sent, dict)
    read = credentials(sent)
    assert (read['user_id'], read['roles']) == ('u', ['member'])
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
