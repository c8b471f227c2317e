"""Whether an engine moves, as others see it."""

import time

import pytest

from scheduler_service.factory import build
from tests.support.engines import select, start_engine
from tests.support.services import new_conf
from tests.support.stores import import_inventory
from tests.support.waiting import LIMIT_S, wait_until


def stalled(introspection):
    """Return for how long an engine stands still, after a while."""
    introspection.stalled_for()
    time.sleep(0.5)
    return introspection.stalled_for()


def test_an_engine_that_was_not_started_stands_still_unless_it_loads(
    make_store,
):
    store = make_store()
    url = store.engine.url.render_as_string(hide_password=False)
    engine = build(new_conf(database__connection=url), store)
    assert stalled(engine.introspection) >= 0.5
    with engine._source._loads():
        assert stalled(engine.introspection) < 0.5
    assert stalled(engine.introspection) >= 0.5
    assert engine.introspection.snapshot() == {
        'loaded': False,
        'loading': False,
    }


@pytest.mark.db
@pytest.mark.parametrize('kind', ['postgresql', 'mariadb'])
def test_an_engine_that_waits_for_a_lock_moves(make_store, kind):
    store = make_store(kind)
    import_inventory(store)
    engine = start_engine(store, database__lock_timeout=30.0)
    try:
        with store.engine.begin() as other:
            other.exec_driver_sql('UPDATE counters SET value = value + 0')
            future = select(['11111111-0000-4000-8000-000000000001']).deliver(
                engine
            )
            wait_until(engine._source.is_waiting)
            turns = engine._loop.turns
            for _ in range(3):
                assert stalled(engine.introspection) < 0.5
            assert engine._loop.turns == turns
            found = engine.introspection.under_way()
            assert found['waits_for_the_database']
            assert found['first'][0]['kind'] == 'HostJob'
        assert future.result(LIMIT_S).placements
    finally:
        engine.stop()
