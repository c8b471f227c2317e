"""Numbers of decisions by minute, and how full zones were, as stored."""

from __future__ import annotations

import math

import pytest
import sqlalchemy as sa

from scheduler_service.planning.headroom import ZoneUsage
from scheduler_service.store import clock, schema
from scheduler_service.store.records import rates
from scheduler_service.store.records.decisions import Decision
from tests.support.databases import DATABASES

pytestmark = [pytest.mark.db, pytest.mark.parametrize('kind', DATABASES)]


def decision(outcome='chosen', duration_ms=None, rejected=None):
    """Return a decision, for which a filter left no host."""
    reasons = {'duration_ms': duration_ms}
    if outcome != 'chosen':
        funnel = (
            [{'filter': rejected, 'start': 9, 'end': 0}] if rejected else []
        )
        facts = {'funnel': funnel, 'hosts': 9, 'filters': []}
        reasons['error'] = {'name': outcome, 'facts': facts}
    return Decision('r', 'select_destinations', outcome, reasons)


def stored(store, since=0.0):
    with store.reading() as conn:
        return rates.between(conn, since)


def test_a_minute_is_stored_as_it_begins_and_as_it_ends(kind, make_store):
    store = make_store(kind)
    counter = rates.RateCounter()
    counter.store(store.write, 'one')
    assert stored(store) == []
    counter.count([decision(duration_ms=0.2), decision(duration_ms=3.0)])
    counter.store(store.write, 'one')
    (begun,) = stored(store)
    assert (begun.daemon, begun.counts.decisions) == ('one', 2)
    counter.count([decision('NoValidHost', 99_000.0, 'RamFilter')])
    # However slow the machine is, the minute is not over, and then it is.
    counter._ends_at = math.inf
    counter.store(store.write, 'one')
    assert [rate.counts.decisions for rate in stored(store)] == [2]
    counter._ends_at = 0.0
    counter.store(store.write, 'one')
    ((at, _, total),) = stored(store)
    assert at == begun.at
    assert total.outcomes == {'chosen': 2, 'NoValidHost': 1}
    assert total.filters == {'RamFilter': 1}
    assert total.durations == {'0.5': 1, '5': 1, 'inf': 1}


def test_daemons_of_one_name_add_up(kind, make_store):
    store = make_store(kind)
    for _ in range(2):
        counter = rates.RateCounter()
        counter.count([decision('InvalidRequest')])
        counter.store(store.write, 'same', is_last=True)
    assert [rate.counts.filters for rate in stored(store)] == [{'': 1}] * 2


def test_zones_are_recorded_once_in_ten_minutes(kind, make_store):
    store = make_store(kind)
    usage = [ZoneUsage('north', 'VCPU', 100.0, 40.0, 50.0, 10.0, 0.0),
             ZoneUsage('north ', 'VCPU', 10.0, 1.0, 9.0, 0.0, 0.0),
             ZoneUsage('empty', 'VCPU', 0.0, 0.0, 0.0, 0.0, 0.0)]  # fmt: skip
    for _ in range(2):
        left = store.write(lambda writer: rates.record_zones(writer, usage))
        assert 0 < left <= rates.PERIOD_S
        usage[0] = usage[0]._replace(used=90.0)
    places = [('north', 'VCPU'), ('north ', 'VCPU'), ('empty', 'VCPU')]
    with store.reading() as conn:
        found = rates.trends(conn, places, 0.0)
        count = sa.select(sa.func.count()).select_from(schema.zone_usage)
        periods = {at for points in found.values() for at, _ in points}
        # A new period may have begun meanwhile.
        assert conn.execute(count).scalar() == 3 * len(periods)
    first = {place: points[0][1] for place, points in found.items()}
    assert first == {places[0]: 50.0, places[1]: 10.0}


def test_what_is_older_than_a_week_goes(kind, make_store):
    store = make_store(kind)
    with store.reading() as conn:
        now = clock.read(conn)
    for table, column, seconds in (
        (schema.decision_rates, 'minute', rates.MINUTE_S),
        (schema.zone_usage, 'period', rates.PERIOD_S),
    ):
        more = {'run': 1, 'daemon': 'a', 'document': '{}', 'zone': 'z',
                'resource_class': 'VCPU', 'capacity': 1, 'used': 0,
                'unavailable': 0}  # fmt: skip
        for age in (rates.KEPT_S + 2 * seconds, rates.KEPT_S - 2 * seconds):
            values = {n: more[n] for n in more if n in table.c}
            values[column] = int((now - age) // seconds)
            with store.engine.begin() as conn:
                conn.execute(sa.insert(table), values)
    store.write(lambda writer: rates.prune(writer, now - rates.KEPT_S))
    with store.reading() as conn:
        for table in (schema.decision_rates, schema.zone_usage):
            count = sa.select(sa.func.count()).select_from(table)
            assert conn.execute(count).scalar() == 1
