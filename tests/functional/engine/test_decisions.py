"""Decisions are recorded with their reasons."""

import pytest

from scheduler_service import errors
from tests.support.documents import (
    CONTEXT,
    SMALL,
)
from tests.support.waiting import wait_until


def test_decision_has_its_reasons_when_read_afterwards(make_service):
    from scheduler_service.store.records import decisions

    service = make_service()
    answer = service.client.select_destinations(CONTEXT, {'flavor': SMALL})
    with pytest.raises(errors.NoValidHost):
        service.client.select_destinations(
            CONTEXT,
            {'request_id': 'req-no', 'flavor': {'memory_mb': 10**7}},
        )
    # A thread stores them, and may be in the middle of it.
    wait_until(lambda: len(service.daemon.scheduler.decisions(10)) == 2)
    with service.store.reading() as conn:
        good = decisions.show(conn, answer['request_id'])
        bad = decisions.show(conn, 'req-no')
        with pytest.raises(errors.DecisionNotFound):
            decisions.show(conn, 'req-none')
    assert good[0]['outcome'] == 'chosen'
    assert good[0]['explanation']['finalists'][0]['host'] == 'compute-4'
    assert bad[0]['outcome'] == 'NoValidHost'
    assert bad[0]['error']['facts']['filters'][0]['filter'] == 'RamFilter'
