"""Replies to casts: to the topic that is named, and as notifications."""

import logging

import pytest

from scheduler_service import errors
from scheduler_service.bus.wire import Request
from scheduler_service.rpc.delivery import CastReply, new_notifier
from scheduler_service.rpc.endpoints import ReplyTo
from tests.support.services import new_conf

CONTEXT = {'user_id': 'u'}


class Notifier:
    """Records what is published, as oslo.messaging's notifier would."""

    def __init__(self, fault: Exception | None = None) -> None:
        self._fault = fault
        self.published: list[tuple[str, str, object]] = []

    def info(self, ctxt, event_type, payload) -> None:
        self._publish('info', event_type, payload)

    def error(self, ctxt, event_type, payload) -> None:
        self._publish('error', event_type, payload)

    def _publish(self, priority, event_type, payload) -> None:
        if self._fault:
            raise self._fault
        self.published.append((priority, event_type, payload))


def publish(notifier, args, result, error=None):
    """Publish the outcome of a message."""
    message = {'method': 'select_destinations', 'args': args}
    cast = CastReply(Request(None, message, CONTEXT), None, notifier)
    cast.set_outcome(result, error)
    cast.notify()


def test_error_has_the_id_of_the_request_when_it_cannot_be_parsed():
    notifier = Notifier()
    args = {'request': {'request_id': 'req-1', 'flavor': 'nonsense'}}
    publish(notifier, args, None, errors.InvalidRequest('no'))
    ((priority, event, payload),) = notifier.published
    assert (priority, event) == (
        'error',
        'scheduler.select_destinations.error',
    )
    assert payload['request_id'] == 'req-1'
    assert payload['error']['name'] == 'InvalidRequest'


def test_error_has_no_id_when_the_arguments_are_no_object():
    notifier = Notifier()
    for args in (None, [], {'request': 5}, {'zone': {}}):
        publish(notifier, args, None, errors.InvalidRequest('no'))
    ids = [payload['request_id'] for _, _, payload in notifier.published]
    assert ids == [None] * 4


def test_failure_is_logged_when_a_notification_is_not_published(caplog):
    with caplog.at_level(logging.WARNING):
        publish(Notifier(OSError('no broker')), {}, {'request_id': 'r'})
    assert 'no broker' in caplog.text


@pytest.mark.parametrize(
    ('drivers', 'made'),
    [([], False), (['noop'], False), (['noop', 'log'], True)],
)
def test_there_is_a_notifier_when_a_driver_is_configured(drivers, made):
    conf = new_conf(oslo_messaging_notifications__driver=drivers)
    notifier = new_notifier(conf, 'inproc://notifier/', 'server')
    assert (notifier is not None) is made
    if made:
        notifier.transport.cleanup()


def test_a_destination_may_have_the_longest_name_there_is():
    assert len(ReplyTo(topic='t' * 255).topic) == 255
    assert ReplyTo(topic='t' * 200, server='s' * 54).server == 's' * 54
    with pytest.raises(ValueError, match='at most 255 bytes'):
        ReplyTo(topic='t' * 200, server='s' * 55)
