"""The call lists of the architecture page are what a daemon calls.

Each list is compared with a recording, thread by thread: what it names is
called there in this order, with other functions in between. A function that
the bus or the database of a test does not use is left out.
"""

from __future__ import annotations

import uuid

import pytest

from scheduler_service import errors
from tests.support.documents import CONTEXT, SMALL
from tests.support.pages import ARCHITECTURE, call_lists
from tests.support.recording import Recorder
from tests.support.stores import (
    import_inventory,
    load_snapshot,
    new_claim,
    write_claims,
)
from tests.support.waiting import wait_until
from tools import request_path

LISTS = call_lists(ARCHITECTURE.read_text())
GROUP = 'aaaaaaaa-0000-4000-8000-000000000001'
# The database beside each bus.
DATABASES = {'inproc': 'sqlite', 'rabbit': 'postgresql'}
# What is not called there.
UNUSED = {
    'inproc': ('rpc.rabbit:', 'store.claims.pg_'),
    'rabbit': (
        'store.claims.batch:claim_all',
        'store.claims.batch:join_groups',
    ),
}


@pytest.fixture
def recorder():
    made = Recorder()
    made.install()
    made.start()
    yield made
    made.uninstall()
    made.stop()


@pytest.fixture(
    params=[
        'inproc',
        pytest.param('rabbit', marks=[pytest.mark.broker, pytest.mark.db]),
    ]
)
def check(recorder, make_service, request):
    """Give a function that starts a daemon, and one that compares a list."""
    bus = request.param

    def start(**options):
        service = make_service(bus, DATABASES[bus], **options)
        recorder.uninstall()
        return service

    def compare(title):
        rows = [
            (name, thread)
            for name, thread in LISTS[title]
            if not name.startswith(UNUSED[bus])
            # Over RabbitMQ a reply to a call needs no other thread.
            and (thread != 'reply' or bus == 'inproc')
        ]
        assert len(rows) > 4
        try:
            wait_until(lambda: not recorder.recorded().missing(rows), 5)
        except AssertionError:
            missing = recorder.recorded().missing(rows)
            pytest.fail(f'not called in turn: {missing}')

    return start, compare


def test_the_way_of_one_request(check):
    start, compare = check
    start().client.select_destinations(CONTEXT, {'flavor': SMALL})
    compare('The way of one request')


def test_a_zone(check):
    start, compare = check
    start().client.schedule_zone(CONTEXT, {'name': 'zone.example.'})
    compare('A zone')


@pytest.mark.parametrize(
    ('verb', 'title'),
    [('select', 'The way of one request'), ('zone', 'A zone')],
)
def test_a_list_has_what_the_tool_prints_of_each_thread(verb, title):
    rows = [
        row for row in LISTS[title] if not row[0].startswith(UNUSED['inproc'])
    ]
    recording, idle = request_path.record(verb, embedded=True)
    found = recording.without(idle)
    assert recording.missing(rows) == []
    assert sorted({thread for _, thread in rows}) == sorted(found.threads())
    assert len(LISTS[title]) <= 25


def test_many_requests_in_one_message(check):
    start, compare = check
    request = {'select_destinations': {'flavor': {'vcpus': 1}}}
    outcomes = start().client.schedule_many(CONTEXT, [request] * 64)
    assert all('result' in outcome for outcome in outcomes)
    compare('Many requests in one message')


def test_a_member_of_a_server_group(check):
    start, compare = check
    service = start(scheduler__snapshot_max_age=0.0)
    groups = [{'uuid': GROUP, 'policy': 'anti-affinity'}]
    import_inventory(service.store, {'server_groups': groups})
    service.client.select_destinations(
        CONTEXT, {'flavor': SMALL, 'instance_group': GROUP}
    )
    compare('A member of a server group')


def test_a_lost_claim(check):
    start, compare = check
    service = start(scheduler__snapshot_max_age=60.0)
    snapshot = load_snapshot(service.store)
    last = len(snapshot.hosts) - 1
    other = new_claim(
        snapshot,
        7000,
        consumer=str(uuid.uuid4()),
        host_id=int(snapshot.hosts.ids[last]),
        host=snapshot.hosts.host_at(last),
        node=snapshot.hosts.node_at(last),
    )
    write_claims(service.store, other)
    flavor = {'vcpus': 1, 'memory_mb': 7000}
    assert service.select_hosts(flavor=flavor) != ['compute-4']
    compare('A lost claim')


def test_a_refusal(check):
    start, compare = check
    service = start(scheduler__snapshot_max_age=60.0)
    with pytest.raises(errors.NoValidHost):
        service.select_hosts(flavor={'vcpus': 1000})
    compare('A refusal')
