"""A daemon counts what it decides, and records how full zones are."""

from __future__ import annotations

import sqlalchemy as sa

from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from scheduler_service.store.records import rates
from tests.support.databases import ready_database
from tests.support.services import started
from tests.support.waiting import wait_until


def stored(store):
    with store.reading() as conn:
        return rates.between(conn, 0.0)


def test_all_decisions_of_a_daemon_are_counted_once_it_ended(tmp_path):
    store = Store.connect(ready_database(f'sqlite:///{tmp_path}/'))
    service = started(store, scheduler__server='one')
    try:
        service.select_hosts()
        # The first one is there at once.
        (rate,) = wait_until(lambda: stored(store))
        assert (rate.daemon, rate.counts.outcomes) == ('one', {'chosen': 1})
        for _ in range(4):
            service.select_hosts()
    finally:
        service.stop()
    total = rates.Counts()
    for rate in stored(store):
        total.add(rate.counts)
    assert (total.decisions, sum(total.durations.values())) == (5, 5)
    store.dispose()


def test_one_of_two_daemons_records_how_full_zones_are(tmp_path):
    store = Store.connect(ready_database(f'sqlite:///{tmp_path}/'))
    services = [started(store, scheduler__server=name) for name in 'ab']
    try:
        registers = [service.daemon._register for service in services]
        wait_until(lambda: all(each._zones_due for each in registers))
        with store.reading() as conn:
            rows = conn.execute(sa.select(schema.zone_usage)).all()
        usage = services[0].daemon.scheduler.introspection.usage()
        places = {(use.zone, use.resource_class) for use in usage}
        assert {(row.zone, row.resource_class) for row in rows} == places
        # Once, or twice where ten minutes ended meanwhile.
        assert len(rows) == len(places) * len({row.period for row in rows})
    finally:
        for service in services:
            service.stop()
        store.dispose()
