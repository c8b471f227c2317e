"""What happened to hosts and instances, as two daemons record it."""

from __future__ import annotations

import contextlib
import uuid

import pytest

from scheduler_service import errors
from scheduler_service.model import Instance, documents
from scheduler_service.store.records import recorded_events
from scheduler_service.store.writing import hosts as host_rows
from scheduler_service.store.writing import instances as instance_rows
from tests.support.engines import start_engine, store_all
from tests.support.stores import import_inventory
from tests.support.waiting import LIMIT_S

FLAVOR = {'vcpus': 1, 'memory_mb': 256, 'root_gb': 1}


class Cloud:
    """Two daemons, and others that write."""

    def __init__(self, store):
        self.store = store
        import_inventory(store, {
            'hosts': [
                {'host': name, 'vcpus': 8, 'memory_mb': memory, 'local_gb': 9}
                for name, memory in (('a', 4096), ('b', 1024))
            ],
        })  # fmt: skip
        self.engines = [
            start_engine(store, scheduler__snapshot_max_age=0.0)
            for _ in range(2)
        ]
        for number, engine in enumerate(self.engines):
            engine.recorder.origin = {'daemon': f'daemon-{number}'}

    def ask(self, daemon, move=False, **request):
        document = {'flavor': FLAVOR, **request}
        with contextlib.suppress(errors.SchedulerError):
            return (
                self.engines[daemon]
                .select_destinations(documents.request(document), move=move)
                .result(LIMIT_S)
            )

    def told(self, daemon, host=None, instance=None):
        for engine in self.engines:
            store_all(engine)
        with self.store.reading() as conn:
            found = [*recorded_events.of_subject(
                conn, recorded_events.Subject(host, instance), 0.0
            )]  # fmt: skip
        return [
            (each.event, each.host, each.instance, each.request_id)
            for each in found
            if each.daemon == f'daemon-{daemon}'
        ]


@pytest.fixture
def cloud(make_store):
    made = Cloud(make_store('sqlite'))
    yield made
    for engine in made.engines:
        engine.stop()


def test_one_daemon_claims_and_the_other_one_sees_it(cloud):
    cloud.ask(1, request_id='req-0')
    made = cloud.ask(0, request_id='req-1')
    (place,) = made.placements
    one, host = place.instance_uuid, place.selected.host
    cloud.ask(1, request_id='req-2')
    cloud.engines[0].release([one]).result(LIMIT_S)
    cloud.ask(1, request_id='req-3')
    told = [each[:2] for each in cloud.told(0, instance=one)]
    assert told[0] == ('claimed', host)
    assert told[1:] == [('gone', host), ('release', None)]
    assert ('claimed', host, one, 'req-1') in cloud.told(0, host=host)
    told = [each[:2] for each in cloud.told(1, instance=one)]
    assert told == [('seen', host), ('gone', host)]


def test_what_a_host_reports_and_an_operator_does_is_there(cloud):
    cloud.ask(0)
    report = documents.host_report({'host': 'b', 'num_io_ops': 7})
    moved = str(uuid.uuid4())
    for change in (
        lambda w: host_rows.report(w, [report]),
        lambda w: host_rows.set_status(w, 'b', False, 'a new disk'),
        lambda w: host_rows.set_status(w, 'b', True),
        lambda w: instance_rows.report(w, [Instance(uuid=moved, host='b')]),
        lambda w: host_rows.remove_service_host(w, 'b'),
    ):
        cloud.store.write(change)
        cloud.ask(0)
    told = [each[0] for each in cloud.told(0, host='b')]
    for event in ('reported', 'disabled', 'enabled', 'seen', 'removed'):
        assert event in told, told
    assert told.index('disabled') < told.index('enabled')
    with cloud.store.reading() as conn:
        found = recorded_events.of_subject(
            conn, recorded_events.Subject('b', None), 0.0
        )
        details = {each.event: each.detail for each in found}
    assert details['disabled'] == 'a new disk'
    assert details['enabled'] == ''


def test_a_refusal_counts_how_often(cloud):
    one = str(uuid.uuid4())
    large = {**FLAVOR, 'memory_mb': 99_999}
    for _ in range(2):
        cloud.ask(0, flavor=large, instance_uuids=[one], request_id='req-9')
    told = cloud.told(0, instance=one)
    assert {each[0] for each in told} == {'refused'}
    assert {each[3] for each in told} == {'req-9'}


def test_a_move_is_seen_on_its_new_host_and_gone_when_it_ends(cloud):
    """By the daemon that claims it, and by the others."""
    made = cloud.ask(0, request_id='req-1')
    (place,) = made.placements
    one, old = place.instance_uuid, place.selected.host
    cloud.ask(1)
    cloud.engines[0].confirm([one]).result(LIMIT_S)
    moved = cloud.ask(0, True, request_id='req-2', instance_uuids=[one])
    new = moved.placements[0].selected.host
    assert new != old
    for daemon in (0, 1):
        cloud.ask(daemon)
        assert ('seen', new, one, None) in cloud.told(daemon, host=new)
        told = cloud.told(daemon, host=old)
        assert ('gone', old, one, None) not in told
    cloud.engines[0].confirm([one]).result(LIMIT_S)
    for daemon in (0, 1):
        cloud.ask(daemon)
        assert ('gone', old, one, None) in cloud.told(daemon, host=old)
        told = cloud.told(daemon, host=new)
        assert ('gone', new, one, None) not in told
