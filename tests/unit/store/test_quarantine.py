"""Counts of redelivered messages, and the messages that were quarantined."""

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from scheduler_service.store.records import quarantine


def count(store: Store, message_id: str, limit: int = 0, **values) -> bool:
    """Count a delivery; return whether the message may be worked on."""
    message = values.get('method', 'ping'), values.get('message', '{}')
    return store.write(
        lambda w: quarantine.count_delivery(w, message_id, *message, limit)
    )


def quarantined(store: Store, *message_ids: str, **values) -> None:
    """Deliver messages once more than is allowed."""
    for message_id in message_ids:
        assert count(store, message_id, limit=1, **values)
        assert not count(store, message_id, limit=1, **values)


def uncount(store: Store, *message_ids: str) -> None:
    store.write(lambda writer: quarantine.uncount(writer, message_ids))


def deliveries(store: Store) -> dict[str, int]:
    """Return how often each message was delivered, quarantined or not."""
    table = schema.quarantine
    with store.reading() as conn:
        query = sa.select(table.c.message_id, table.c.deliveries)
        return {row[0]: row[1] for row in conn.execute(query)}


def listed(store: Store) -> list[str]:
    with store.reading() as conn:
        return [one['message_id'] for one in quarantine.listing(conn)]


def show(store: Store, message_id: str):
    with store.reading() as conn:
        return quarantine.show(conn, message_id)


def set_age(store: Store, message_id: str, seconds: float) -> None:
    """Have the last delivery of a message lie in the past."""
    table = schema.quarantine
    earlier = table.c.changed_at - seconds
    mine = table.c.message_id == message_id
    with store.engine.begin() as conn:
        conn.execute(sa.update(table).where(mine).values(changed_at=earlier))


def test_only_the_named_message_is_uncounted_when_others_are_counted(store):
    for message_id in ('m', 'm', 'n', 'n', 'o'):
        count(store, message_id)
    uncount(store, 'm', 'o')
    assert deliveries(store) == {'m': 1, 'n': 2, 'o': 0}


def test_count_stays_when_a_message_quarantined_is_uncounted(store):
    quarantined(store, 'm', 'n')
    uncount(store, 'm')
    assert deliveries(store) == {'m': 2, 'n': 2}


def test_no_delivery_is_granted_when_uncounted_more_often_than_counted(store):
    count(store, 'm', limit=1)
    uncount(store, 'm', 'm')
    assert deliveries(store) == {'m': 0}
    assert count(store, 'm', limit=1)
    assert not count(store, 'm', limit=1)


def test_only_the_named_count_is_deleted_when_its_work_is_done(store):
    count(store, 'm')
    count(store, 'n')
    quarantined(store, 'aside')
    for message_id in ('m', 'aside'):
        store.write(lambda w, one=message_id: quarantine.clear(w, one))
    assert deliveries(store) == {'n': 1, 'aside': 2}


def test_messages_quarantined_are_listed_when_others_are_counted(store):
    count(store, 'counted')
    quarantined(store, 'old', 'new')
    set_age(store, 'old', 60)
    assert listed(store) == ['new', 'old']


def test_the_named_message_is_shown_when_others_are_quarantined(store):
    quarantined(store, 'm', 'n', message='{"args":{"a":1}}')
    quarantined(store, 'o', method='pong', message='{"args":{"b":2}}')
    shown = show(store, 'o')
    assert (shown['message_id'], shown['method']) == ('o', 'pong')
    assert shown['deliveries'] == 2
    assert shown['message'] == {'args': {'b': 2}}


@pytest.mark.parametrize('message_id', ['counted', 'unknown'])
def test_no_message_is_shown_when_it_is_not_quarantined(store, message_id):
    count(store, 'counted')
    quarantined(store, 'aside')
    with pytest.raises(errors.MessageNotFound):
        show(store, message_id)


def test_message_is_cut_to_its_column_when_it_is_too_long(store):
    quarantined(store, 'm', method='p' * 100, message='x' * 1_000_100)
    shown = show(store, 'm')
    assert shown['method'] == 'p' * schema.quarantine.c.method.type.length
    assert shown['message'] == 'x' * 1_000_000


def test_only_the_named_message_is_dropped_when_others_are_quarantined(store):
    count(store, 'counted')
    quarantined(store, 'm', 'n')

    def drop(message_id: str) -> int:
        return store.write(lambda w: quarantine.drop(w, message_id))

    assert drop('m') == 1
    assert listed(store) == ['n']
    # Its count is needed until it was worked on to the end.
    assert drop('counted') == drop('m') == drop('unknown') == 0
    assert deliveries(store) == {'counted': 1, 'n': 2}


def test_old_counts_are_pruned_when_not_quarantined(store):
    count(store, 'old')
    count(store, 'young')
    quarantined(store, 'aside')
    for message_id in ('old', 'aside'):
        set_age(store, message_id, 7200)
    set_age(store, 'young', 1800)
    pruned = store.write(lambda writer: quarantine.prune(writer, 3600))
    assert pruned == 1
    assert deliveries(store) == {'young': 1, 'aside': 2}
