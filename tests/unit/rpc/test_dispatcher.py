"""Which method a message is dispatched to, and which messages are not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.rpc.server import Dispatcher


@dataclasses.dataclass
class Incoming:
    """A message as a driver hands it over."""

    message: Any
    ctxt: Any = None


class Endpoint:
    METHODS = frozenset(('echo',))

    def echo(self, ctxt, args, incoming):
        return ctxt, args

    def hidden(self, ctxt, args, incoming):
        raise AssertionError


@pytest.fixture
def dispatch():
    return Dispatcher([Endpoint()], '1.1').dispatch


@pytest.mark.parametrize('version', ['1.0', '1.1'])
def test_a_method_gets_context_and_arguments(dispatch, version):
    message = {'method': 'echo', 'version': version, 'args': {'a': 1}}
    assert dispatch(Incoming(message, {'user_id': 'u'})) == (
        {'user_id': 'u'}, {'a': 1},
    )  # fmt: skip


def test_a_message_without_a_version_is_1_0(dispatch):
    assert dispatch(Incoming({'method': 'echo'})) == (None, {})


@pytest.mark.parametrize('version', ['1.2', '2.0', '0.9', 'x', '1', None, 11])
def test_another_version_is_rejected_with_what_is_served(dispatch, version):
    message = {'method': 'echo', 'version': version}
    with pytest.raises(errors.InvalidRequest) as caught:
        dispatch(Incoming(message))
    assert caught.value.facts['served'] == '1.1'


@pytest.mark.parametrize(
    'message',
    [
        {'method': 'hidden'},
        {'method': ['echo']},
        {},
        {'method': 'echo', 'namespace': 'other'},
    ],
)
def test_an_unknown_method_is_rejected_with_the_known_ones(dispatch, message):
    with pytest.raises(errors.InvalidRequest) as caught:
        dispatch(Incoming(message))
    assert caught.value.facts['methods'] == ['echo']


def test_a_message_that_is_not_an_object_is_rejected(dispatch):
    with pytest.raises(errors.InvalidRequest, match='not an object'):
        dispatch(Incoming(['echo']))
