"""Events of daemons and commands, as the database keeps them."""

from __future__ import annotations

import time

import pytest

from scheduler_service.moments import Occurrence
from scheduler_service.store.records import daemons
from tests.support.databases import DATABASES


@pytest.mark.parametrize('kind', DATABASES)
def test_old_events_are_deleted_and_the_rest_is_known(kind, make_store):
    store = make_store(kind)
    now = time.monotonic()
    happened = [
        Occurrence('reloaded', f'{age}\0', now - age, now - age + 9)
        for age in (9000, 8000, 7300, 3000)
    ]
    for _ in range(2):
        # As where the answer to a commit was lost.
        store.write(lambda w: daemons.record(w.conn, 'one', happened))

    def prune(most):
        before = time.time() - 7200
        return store.write(lambda w: daemons.prune_events(w, before, most))

    assert [prune(1), prune(9), prune(9)] == [1, 1, 0]
    with store.reading() as conn:
        told = daemons.since(conn, 0.0)
        # Nothing happened between this one and the time that is kept.
        assert abs(daemons.oldest(conn) - (time.time() - 7300)) < 5
        lately = daemons.since(conn, time.time() - 2995)
    assert [row['detail'] for row in told] == ['7300\\x00', '3000\\x00']
    assert [row['detail'] for row in lately] == ['3000\\x00']
    assert lately[0]['ended_at'] - lately[0]['begun_at'] == pytest.approx(
        9, abs=0.1
    )
