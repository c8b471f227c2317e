"""Claims that nobody confirms."""

from __future__ import annotations

from tests.support.documents import CONTEXT, SMALL
from tests.support.stores import claim_state
from tests.support.waiting import wait_until


def test_claim_expires_when_nobody_confirms_it(make_service):
    service = make_service(scheduler__claim_timeout=1.0)
    answers = [
        service.client.select_destinations(CONTEXT, {'flavor': SMALL})
        for _ in range(2)
    ]
    kept, lost = (a['placements'][0]['instance_uuid'] for a in answers)
    service.client.confirm(CONTEXT, [kept])
    wait_until(lambda: claim_state(service.store, lost) is None)
    assert claim_state(service.store, kept) == 'confirmed'
    status = service.client.ping(CONTEXT)
    assert status['counters']['claims_expired'] == 1
