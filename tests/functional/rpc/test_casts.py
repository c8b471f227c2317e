"""Casts, whose answers are cast to a topic or published."""

import queue
import uuid

import pytest

from scheduler_service.rpc import transport
from tests.support.documents import CONTEXT, DEFAULT_POOL, SMALL

import oslo_messaging  # isort: skip
from tests.support.services import BUSES, hosts_of
from tests.support.waiting import LIMIT_S


# First: what idles on the shared daemon's bus meanwhile ends seconds later.
@pytest.mark.parametrize('bus', BUSES)
def test_outcome_is_published_when_notifications_are_on(make_service, bus):
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
    service.listeners.append(listener)
    service.client.select_destinations_cast(CONTEXT, {'flavor': SMALL})
    assert seen.get(timeout=LIMIT_S) == (
        'scheduler.select_destinations.end', None,
    )  # fmt: skip
    service.client.select_destinations_cast(
        CONTEXT, {'flavor': {'memory_mb': 10**7}}
    )
    event, error = seen.get(timeout=LIMIT_S)
    assert event == 'scheduler.select_destinations.error'
    assert error['name'] == 'NoValidHost'


def test_answer_is_cast_to_the_topic_when_one_is_named(service):
    topic = f'conductor-{uuid.uuid4().hex}'
    answers = service.answers(topic)
    sent = service.client.select_destinations_cast(
        CONTEXT, {'flavor': SMALL}, reply_to={'topic': topic}
    )
    told = answers.get(timeout=LIMIT_S)
    assert told['request_id'] == sent['request_id']
    assert told['error'] is None
    assert hosts_of(told['result']) == ['compute-4']
    service.client.schedule_zone_cast(
        CONTEXT, {'name': 'b.'},
        reply_to={'topic': topic, 'server': 'test'},
    )  # fmt: skip
    assert answers.get(timeout=LIMIT_S)['result']['pool_id'] == DEFAULT_POOL


@pytest.mark.parametrize(
    ('request_', 'name'),
    [
        ({'flavor': {'memory_mb': 10**7}}, 'NoValidHost'),
        ({'flavour': {}}, 'InvalidRequest'),
    ],
)
def test_error_is_cast_when_a_request_fails(service, request_, name):
    topic = f'conductor-{uuid.uuid4().hex}'
    answers = service.answers(topic)
    sent = service.client.select_destinations_cast(
        CONTEXT, request_, reply_to={'topic': topic}
    )
    told = answers.get(timeout=LIMIT_S)
    assert told['error']['name'] == name
    assert told['request_id'] == sent['request_id']
    assert told['result'] is None
