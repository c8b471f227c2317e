"""Errors have a stable name, a sentence and facts that survive the bus."""

import inspect
import json

import pytest

from scheduler_service import errors

EVERY = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.SchedulerError)
]


@pytest.mark.parametrize('kind', EVERY)
def test_error_is_the_same_when_rebuilt_from_what_is_sent(kind):
    error = kind('told', host='a', count=2)
    again = kind(*error.args, **error.kwargs)
    assert (
        again.to_dict()
        == error.to_dict()
        == {
            'name': kind.__name__,
            'message': 'told',
            'code': kind.code,
            'facts': {'host': 'a', 'count': 2},
        }
    )
    json.dumps(again.to_dict())
    assert type(errors.from_dict(error.to_dict())) is kind
    assert errors.from_dict(error.to_dict()).to_dict() == error.to_dict()


def test_an_error_of_an_unknown_class_is_a_plain_one():
    document = {'name': 'Any', 'message': 'told', 'code': 500, 'facts': {}}
    assert type(errors.from_dict(document)) is errors.SchedulerError


def test_message_has_the_facts_when_none_is_given():
    assert str(errors.HostNotFound(host='a')) == (
        'There is no such host. (host=a)'
    )
