"""Redelivered messages: counted, and quarantined in the end."""

import pytest

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.store.connection import Store
from scheduler_service.store.ports.quarantine import Quarantine
from scheduler_service.store.records import quarantine as records

MESSAGE = {'method': 'ping', 'args': {'a': 1}}


@pytest.fixture
def health() -> Health:
    return Health()


def begin(quarantine: Quarantine, message_id: str = 'm', **message) -> None:
    quarantine.begin(message_id, {**MESSAGE, **message}, {'user_id': 'u'})


def test_message_is_quarantined_when_delivered_more_often_than_allowed(
    store, health, caplog
):
    quarantine = Quarantine(store, limit=2, health=health)
    begin(quarantine)
    begin(quarantine)
    with pytest.raises(errors.RequestQuarantined) as caught:
        begin(quarantine)
    assert caught.value.facts == {'message_id': 'm', 'deliveries': 2}
    assert 'Message m (ping)' in caplog.text
    counters = health.counters()
    assert counters['requests_redelivered'] == 3
    assert counters['requests_quarantined'] == 1


def test_message_stays_quarantined_when_it_comes_again(store, health):
    quarantine = Quarantine(store, limit=1, health=health)
    begin(quarantine)
    for _ in range(2):
        with pytest.raises(errors.RequestQuarantined):
            begin(quarantine)
    quarantine.end('m')
    with pytest.raises(errors.RequestQuarantined):
        begin(quarantine)


def test_no_message_is_quarantined_when_there_is_no_limit(store, health):
    quarantine = Quarantine(store, limit=0, health=health)
    for _ in range(5):
        begin(quarantine)


@pytest.mark.parametrize(
    ('args', 'kept'), [({'a': 1}, {'a': 1}), ({'a': object()}, None)]
)
def test_content_is_kept_when_a_message_is_quarantined(
    store, health, args, kept
):
    quarantine = Quarantine(store, limit=1, health=health)
    begin(quarantine, args=args)
    with pytest.raises(errors.RequestQuarantined):
        begin(quarantine, args=args)
    with store.reading() as conn:
        message = records.show(conn, 'm')['message']
    assert message['method'] == 'ping'
    assert message.get('args') == kept


def test_work_begins_when_the_database_does_not_answer(tmp_path, health):
    store = Store.connect(f'sqlite:///{tmp_path}/none/there.sqlite')
    quarantine = Quarantine(store, limit=1, health=health)
    for _ in range(3):
        begin(quarantine)
    quarantine.end('m')
    store.dispose()
