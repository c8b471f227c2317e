"""How a shadow's decisions compare, counted by the hour and reported."""

import datetime

import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from scheduler_service.store.records import shadow
from scheduler_service.store.records.shadow import Count, Verdict

DAY = datetime.timedelta(days=1)


@pytest.fixture
def add(store):
    """Give a function that adds counts."""

    def added(counts, until=None):
        store.write(lambda writer: shadow.add(writer, counts, until))

    return added


def report(store, since=DAY):
    with store.reading() as conn:
        return shadow.report(conn, since)


def age(store, seconds):
    """Have all that is counted be older."""
    table = schema.shadow_verdicts
    with store.engine.begin() as conn:
        conn.execute(sa.update(table).values(hour=table.c.hour - seconds))


def test_counts_of_an_hour_add_up_to_a_row(store, add):
    add({(Verdict.OTHER, 'RAMWeigher'): Count(2, 6.0, 4.0, 'req-1')})
    add({(Verdict.OTHER, 'RAMWeigher'): Count(1, 9.0, 9.0, None)})
    assert report(store)['shadow'] == [
        {
            'verdict': 'another', 'cause': 'RAMWeigher', 'requests': 3,
            'mean_ms': 5.0, 'slowest_ms': 9.0, 'request_id': 'req-1',
        }
    ]  # fmt: skip
    with store.reading() as conn:
        assert len(conn.execute(sa.select(schema.shadow_verdicts)).all()) == 1


def test_the_summary_says_what_to_look_at(store, add):
    assert report(store)['summary'] == (
        '0 requests: 0 on the same or an equal host'
    )
    add(
        {
            (Verdict.SAME, ''): Count(17_000),
            (Verdict.EQUAL, ''): Count(950),
            (Verdict.OTHER, 'RAMWeigher'): Count(200),
            (Verdict.OTHER, 'CPUWeigher'): Count(51),
            (Verdict.REFUSES, 'NUMATopologyFilter'): Count(3),
            (Verdict.MISSED, ''): Count(7),
        }
    )
    assert report(store)['summary'] == (
        '18,204 requests: 17,950 on the same or an equal host; 251 on '
        'another, by RAMWeigher, CPUWeigher; 3 refused here, by '
        'NUMATopologyFilter: look at these; 7 instances without a request'
    )


def test_only_the_hours_since_a_time_are_reported(store, add):
    add({(Verdict.SAME, ''): Count(1)})
    age(store, 2 * 86400)
    add({(Verdict.SAME, ''): Count(2)})
    assert [row['requests'] for row in report(store)['shadow']] == [2]
    (row,) = report(store, 3 * DAY)['shadow']
    assert row['requests'] == 3


def test_what_is_months_old_is_forgotten(store, add):
    add({(Verdict.SAME, ''): Count(1)})
    age(store, 91 * 86400)
    add({})
    assert report(store, 365 * DAY)['shadow'] == []


def test_it_is_kept_up_to_when_instances_were_read(store, add):
    def until():
        with store.reading() as conn:
            return shadow.read_until(conn)

    assert until() is None
    add({}, 1_700_000_000)
    add({})
    assert until() == 1_700_000_000
