"""Decisions are recorded with their reasons."""

import contextlib

import msgspec
import pytest
from oslo_context import context

from scheduler_service import errors
from scheduler_service.conf.effective import fingerprint
from scheduler_service.model import documents
from tests.support.documents import (
    CONTEXT,
    SMALL,
)
from tests.support.engines import store_all
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


def test_a_refusal_that_is_repeated_is_one_decision(make_service):
    service = make_service()
    large = {'request_id': 'req-large', 'flavor': {'memory_mb': 10**7}}
    larger = {'request_id': 'req-large', 'flavor': {'memory_mb': 10**8}}
    for request in (large, large, larger, large):
        with pytest.raises(errors.NoValidHost):
            service.client.select_destinations(CONTEXT, request)
    store_all(service.daemon.scheduler)
    found = service.daemon.scheduler.decisions(10)
    assert [(row['times'], len(row['instances'])) for row in found] == [
        (3, 1), (1, 1),
    ]  # fmt: skip


ASKED = {
    'request_id': 'req-asked',
    'flavor': {**SMALL, 'name': 'small', 'vcpus': 2},
    'image': {'id': 'cirros'},
    'num_instances': 2,
    'scheduler_hints': {'query': '["=", "$vcpus_used", 0]'},
}


@pytest.mark.parametrize('outcome', ['chosen', 'NoValidHost'])
def test_a_decision_says_what_was_asked_by_whom_and_who_decided(
    make_service, outcome
):
    service = make_service()
    # What oslo.context sends has the user as ``user`` alone.
    caller = context.RequestContext(
        user_id='me', project_id='p', roles=['member']
    )
    # Two flavors of one name may differ in these alone.
    specs = {'hw:cpu_policy': 'shared'}
    asked = {**ASKED, 'flavor': {**ASKED['flavor'], 'extra_specs': specs}}
    if outcome != 'chosen':
        asked['availability_zone'] = 'nowhere'
    with contextlib.suppress(errors.NoValidHost):
        service.client.select_destinations(caller, asked)
    wait_until(lambda: service.daemon.scheduler.decisions(10))
    (shown,) = service.daemon.scheduler.decision('req-asked')
    assert shown['outcome'] == outcome
    kept = documents.request(shown['request'])
    wanted = documents.request({**asked, 'project_id': 'p'})
    assert kept.instance_uuids
    assert kept == msgspec.structs.replace(
        wanted, instance_uuids=kept.instance_uuids
    )
    line = '2 x flavor small (2 vCPUs, 512 MB, 1 GB), image cirros, '
    zone = '' if outcome == 'chosen' else 'zone nowhere, '
    rest = 'query ["=", "$vcpus_used", 0], hw:cpu_policy shared'
    assert shown['asked'] == f'{line}{zone}{rest}'
    assert shown['user_id'] == 'me'
    assert shown['daemon'] == service.daemon.name
    assert shown['configuration'] == fingerprint(service.daemon.conf)
    assert 0 < shown['duration_ms'] < 60_000


def test_a_decision_on_a_zone_says_what_was_asked(make_service):
    service = make_service()
    zone = {'name': 'example.org.', 'attributes': {'tier': 'gold'}}
    with contextlib.suppress(errors.SchedulerError):
        service.client.schedule_zone(
            CONTEXT, {**zone, 'request_id': 'req-zone'}
        )
    wait_until(lambda: service.daemon.scheduler.decisions(10))
    (shown,) = service.daemon.scheduler.decision('req-zone')
    assert shown['asked'] == 'DNS zone example.org., tier gold'
    assert shown['request']['attributes'] == zone['attributes']


def test_of_a_very_large_request_a_line_is_kept(make_service):
    service = make_service()
    asked = {**ASKED, 'ignore_hosts': ['h' * 200] * 400}
    service.client.select_destinations(CONTEXT, asked)
    wait_until(lambda: service.daemon.scheduler.decisions(10))
    (shown,) = service.daemon.scheduler.decision('req-asked')
    assert shown['asked'].startswith('2 x flavor small (2 vCPUs')
    assert 'request' not in shown
