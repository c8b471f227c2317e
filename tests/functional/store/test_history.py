"""Blocks of what daemons saw: kept, cut, damaged and dropped."""

from __future__ import annotations

import datetime
import json
import zlib

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.cmd import manage
from scheduler_service.columns.changes import Release, Update
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.engine.health import Health
from scheduler_service.engine.journal import (
    Changed,
    Decided,
    Ended,
    Journal,
    PodPlaced,
)
from scheduler_service.model import documents
from scheduler_service.store import schema
from scheduler_service.store.records import (
    decisions,
    playback,
    recorded_events,
    recording_format,
    recordings,
)
from scheduler_service.store.workers import decision_recorder
from scheduler_service.store.workers.decision_recorder import RecordingWriter
from tests.support.databases import DATABASES
from tests.support.engines import start_engine
from tests.support.stores import import_two_hosts, load_snapshot
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.db
BLOCKS = schema.history
ORIGIN = 'one', '1.0', 'abc'


class Recording:
    """A daemon's journal, its table, and what stores it."""

    def __init__(self, store):
        import_two_hosts(store)
        self.store, self.journal = store, Journal()
        self.journal.keep(True)
        self.health = Health()
        self.writer = RecordingWriter(
            self.journal, lambda: ORIGIN, self.health
        )
        self.table = load_snapshot(store).hosts
        self.journal.checkpoint(self.table, follows=False)

    def write(self, number=5):
        """Record that the first host reports a number; store it."""
        update = Update(
            loaded=[self.table.ids.item(0)], numbers={'num_io_ops': [number]}
        )
        self.table = self.journal.apply(update, self.table)
        self.store_all()

    def store_all(self):
        self.writer.gather()
        while self.writer:
            self.writer.stored(self.store.write(self.writer.store))

    def checkpoint(self, follows=True):
        self.journal.checkpoint(self.table, follows)
        self.store_all()

    def faults(self):
        with self.store.reading() as conn:
            return [each.fault for each in playback.check_recordings(conn)]

    def dropped(self):
        return self.health.counters().get('history_entries_dropped', 0)

    def numbers(self):
        with self.store.reading() as conn:
            numbers = sa.select(BLOCKS.c.number).order_by(BLOCKS.c.number)
            return [*conn.execute(numbers).scalars()]


def played(conn, *blocks):
    """Return the entries of blocks, whatever they are."""
    return [*playback.Playback(conn, has_tables=False).play(*blocks)]


@pytest.fixture
def recording(make_store):
    return Recording(make_store('sqlite'))


@pytest.mark.parametrize('database', DATABASES)
def test_each_stretch_leads_to_the_next_one(make_store, database):
    recording = Recording(make_store(database))
    for number in range(2):
        recording.write(number)
        recording.checkpoint()
    recording.checkpoint(follows=False)
    assert recording.faults() == ['', '', '', '']
    with recording.store.reading() as conn:
        found = recordings.stretches(conn)
    assert [(each.first, each.last, each.follows) for each in found] == [
        (1, 2, False), (3, 4, True), (5, 5, True), (6, 6, False),
    ]  # fmt: skip
    assert found[0].began_at <= found[0].ended_at <= found[1].began_at


def test_a_checkpoint_has_each_field_of_instances(recording):
    table = recording.table
    for at, image in enumerate(['a', 'b', 'a', '']):
        properties = frozenset({('os', image), ('bus', 'x')} if image else ())
        placed = PlacedInstance(
            f'0000000{at}-0000-4000-8000-00000000000f', f'host{at}',
            f'node{at}', f'project{at}' if at else None, f'flavor{at}',
            properties, 'spawning', at % 2 == 1, f'target{at}',
        )  # fmt: skip
        table.instances.put(placed.uuid, placed)
    recording.checkpoint()
    with recording.store.reading() as conn:
        made = playback.Playback(conn)
        assert [*made.play(recording.writer.run, 2, 2)]
    assert playback.differing(made.overlay.table, table) == []


def test_what_became_of_an_instance_is_told(recording):
    uuid, table = '11111111-0000-4000-8000-000000000001', recording.table
    host, node = table.host_at(0), table.node_at(0)
    request = documents.request({'instance_uuids': [uuid]}).with_ids()
    refused = Decided(request, [], 0, None, None, 0, 'NoValidHost', {})
    for entry in (
        refused, refused,
        Update(instances=[PlacedInstance(uuid, host, node)]),
        Changed('release', [uuid], 'req-9'),
        Release([(uuid, host, node, {})], [], []),
        PodPlaced(uuid, 0, {}), Ended(-1), PodPlaced(uuid, 0, {}), Ended(1),
    ):  # fmt: skip
        recording.journal.put(entry)
    recording.store_all()
    recording.write()

    def told(since):
        with recording.store.reading() as conn:
            subject = recorded_events.Subject(None, uuid)
            found = [*recorded_events.of_subject(conn, subject, since)]
        if found:
            assert found[0].detail == 'NoValidHost, 2 times'
        return [(each.event, each.request_id) for each in found]

    assert told(0.0) == [
        ('refused', request.request_id), ('seen', None),
        ('release', 'req-9'), ('released', 'req-9'),
        ('selected', None), ('claimed', None),
    ]  # fmt: skip
    with recording.store.engine.begin() as conn:
        first = sa.update(BLOCKS).where(BLOCKS.c.number == 2)
        conn.execute(first.values(created_at=5.0))
    assert told(9.0) == []


def test_what_no_entry_explains_is_seen_at_the_next_checkpoint(recording):
    """In the same run, and in the next run of the daemon."""
    uuid, table = '11111111-0000-4000-8000-000000000001', recording.table
    host, node = table.host_at(0), table.node_at(0)
    recording.write()
    table.instances.put(uuid, PlacedInstance(uuid, host, node))
    recording.checkpoint(follows=False)
    table.instances.put(uuid, None)
    again = RecordingWriter(
        recording.journal, lambda: ORIGIN, recording.health
    )
    recording.writer.stop()
    recording.store_all()
    recording.writer = again
    recording.checkpoint()
    for subject in (
        recorded_events.Subject(host, None),
        recorded_events.Subject(None, uuid),
    ):
        with recording.store.reading() as conn:
            found = recorded_events.of_subject(conn, subject, 0.0)
            began = sorted(
                each.began_at for each in recordings.stretches(conn)
            )
        told = [
            (each.event, each.host, each.instance, each.at)
            for each in found
            if each.instance
        ]
        assert told == [
            ('seen', host, uuid, began[1]), ('gone', host, uuid, began[2]),
        ]  # fmt: skip
        # An orderly stop is no gap.
        assert {each.event for each in found} <= {'seen', 'gone', 'reported'}


def test_events_of_a_run_come_in_the_order_of_their_numbers(recording):
    """Also where the clock of the database stepped back."""
    uuid, table = '11111111-0000-4000-8000-000000000001', recording.table
    host, node = table.host_at(0), table.node_at(0)
    for entry in (
        Update(instances=[PlacedInstance(uuid, host, node)]),
        Release([(uuid, host, node, {})], [], []),
    ):
        recording.journal.put(entry)
        recording.store_all()
    with recording.store.engine.begin() as conn:
        last = BLOCKS.c.number == max(recording.numbers())
        earlier = BLOCKS.c.created_at - 20.0
        conn.execute(sa.update(BLOCKS).where(last).values(created_at=earlier))
    with recording.store.reading() as conn:
        found = recorded_events.of_subject(
            conn, recorded_events.Subject(None, uuid), 0.0
        )
    assert [each.event for each in found] == ['seen', 'released']
    assert found[0].at > found[1].at


def test_what_was_not_recorded_is_found(recording):
    recording.write()
    recording.table.numbers['num_io_ops'][0] = 7
    recording.checkpoint()
    assert recording.faults() == ['', 'num_io_ops']


@pytest.mark.parametrize(
    ('cut', 'text'),
    [
        (lambda data: data[:-9], 'is damaged: '),
        (lambda data: b'\x00' + data[1:], 'is damaged: '),
        (lambda data: b'', 'is damaged: '),
        (lambda data: zlib.compress(b'\x91\x07'),
         'is of format 7, not 1'),
        (lambda data: zlib.compress(b'\x91\x01'), 'is damaged: '),
        # More than a daemon stores is not decompressed.
        (lambda data: zlib.compress(bytes(2**24), 9),
         'is damaged: it is cut, or too large'),
    ],
    ids=['cut', 'damaged', 'empty', 'of another format', 'too short',
         'too large'],
)  # fmt: skip
def test_a_block_that_cannot_be_read_is_one_line(recording, cut, text):
    recording.write()
    with recording.store.engine.begin() as conn:
        of_last = BLOCKS.c.number == 2
        data = conn.execute(sa.select(BLOCKS.c.data).where(of_last)).scalar()
        conn.execute(sa.update(BLOCKS).where(of_last).values(data=cut(data)))
    [fault] = recording.faults()
    assert fault.startswith(f'Block 2 of run {recording.writer.run} {text}')
    assert '\n' not in fault


@pytest.mark.parametrize('number', [1, 2])
def test_a_missing_block_is_a_gap_and_never_a_wrong_state(recording, number):
    recording.write()
    recording.write(6)
    with recording.store.engine.begin() as conn:
        conn.execute(sa.delete(BLOCKS).where(BLOCKS.c.number == number))
        run = recording.writer.run
        with pytest.raises(errors.NotRecorded):
            playback.snapshot_of(conn, run, 3, 0)


def test_each_part_of_requests_is_stored_once_in_a_stretch(
    recording, monkeypatch
):
    asked = [
        documents.request(
            {'flavor': {'vcpus': 1}, 'image': {'id': image}}
        ).with_ids()
        for image in 'abbaa'
    ]
    made = [Decided(each, [], 0, None, None, 0, '', {}) for each in asked]
    for decided in made[:3]:
        recording.journal.put(decided)
        recording.store_all()
    recording.checkpoint()
    recording.journal.put(made[3])
    recording.store_all()
    # Where more are known than are remembered, they are stored again.
    monkeypatch.setattr(recording_format, '_MOST_PARTS', 1)
    recording.journal.put(made[4])
    recording.store_all()
    run = recording.writer.run

    def found():
        with recording.store.reading() as conn:
            return recordings.requests(conn, [each.place for each in made])

    expected = {
        decided.place: each for decided, each in zip(made, asked, strict=True)
    }
    assert found() == expected
    with recording.store.reading() as conn:
        blocks = [each.block for each in played(conn, run, 2, 7)]
        new = [len(block.parts) for block in blocks if block.places]
    assert new == [4, 1, 0, 4, 4]
    # Without the block that has the image.
    with recording.store.engine.begin() as conn:
        conn.execute(sa.delete(BLOCKS).where(BLOCKS.c.number == 3))
    assert found().keys() == {made[at].place for at in (0, 3, 4)}
    with (
        recording.store.reading() as conn,
        pytest.raises(errors.NotRecorded, match='Block 3 '),
    ):
        played(conn, run, 4, 4)


def test_a_repeated_refusal_is_one_entry():
    request = documents.request({'flavor': {'vcpus': 1}}).with_ids()
    refused = [
        Decided(request, [], 0, None, None, 0, name, {})
        for name in ('NoValidHost', 'NoValidHost', 'FilterFault')
    ]
    packer = recording_format.Packer(ORIGIN)
    assert [*map(packer.add, [*refused, refused[0]])] == [0, 0, 1, 2]
    assert packer.add(Ended(1)) == 3
    assert packer.add(refused[0]) == 4


def test_what_gets_into_no_block_has_no_place(recording):
    request = documents.request({'flavor': {'vcpus': 1}}).with_ids()
    made = [Decided(request, [], 0, None, None, 0, '', {}) for _ in range(2)]
    for entry in (made[0], Ended(2**70)):
        recording.journal.put(entry)
    recording.store_all()
    recording.checkpoint()
    recording.journal.put(made[1])
    recording.store_all()
    run = recording.writer.run
    assert [each.place for each in made] == [None, (run, 3, 0)]


@pytest.mark.parametrize('how', ['recorded', 'off', 'dropped'])
def test_the_request_of_what_was_chosen_is_kept_once(
    make_store, monkeypatch, how
):
    if how == 'dropped':
        monkeypatch.setattr(decision_recorder, '_MOST_WAITING', 0)
    is_recorded = how == 'recorded'
    store = make_store('sqlite')
    import_two_hosts(store)
    engine = start_engine(store, history__keep_days=float(how != 'off'))
    asked = documents.request(
        {'request_id': 'req-1', 'flavor': {'flavorid': 'f', 'vcpus': 1}}
    ).with_ids()
    engine.select_destinations(asked).result(LIMIT_S)
    engine.stop()
    with store.engine.begin() as conn:
        document = conn.execute(sa.select(schema.decisions.c.document))
        assert ('"request":' in document.scalar_one()) == (not is_recorded)
        (shown,) = decisions.show(conn, 'req-1')
        assert documents.request(shown['request']) == asked
        found = decisions.flavors(conn, datetime.timedelta(hours=1), 9)
        assert found == [(asked.flavor, 1)]
        conn.execute(sa.delete(BLOCKS))
        (shown,) = decisions.show(conn, 'req-1')
        assert ('request' in shown) == (not is_recorded)
        assert shown['outcome'] == 'chosen'


def test_a_decision_is_stored_with_its_block_or_after_it(
    make_store, monkeypatch
):
    store = make_store('sqlite')
    import_two_hosts(store)
    monkeypatch.setattr(decision_recorder, '_BYTES_PER_TRANSACTION', 0)
    engine = start_engine(store)
    recorder, record, late = engine.recorder, decisions.record, []

    def recorded(writer, batch):
        for made in batch:
            place = recordings.requests(writer.conn, [made.place])
            assert [*place] == [made.place]
        return record(writer, batch)

    monkeypatch.setattr(decisions, 'record', recorded)
    with recorder._storing:
        request = documents.request({'flavor': {'vcpus': 1}})
        engine.select_destinations(request).result(LIMIT_S)
        wait_until(lambda: recorder._waiting)
        gather = recorder._recording.gather
        monkeypatch.setattr(
            recorder._recording,
            'gather',
            lambda: (gather(), late.append(recorder._waiting[0]),
                     recorder._waiting.append(late[0]))[0],
        )  # fmt: skip
        recorder._store_waiting()
        # Decided while the others were being stored.
        assert [*recorder._waiting] == late
        monkeypatch.undo()
    engine.stop()


def test_blocks_are_stored_once(recording):
    recording.writer.gather()
    for _ in range(2):
        assert recording.store.write(recording.writer.store) == 1
    assert recording.numbers() == [1]


def test_what_cannot_wait_is_dropped_and_a_checkpoint_follows(
    recording, monkeypatch
):
    recording.write()
    monkeypatch.setattr(decision_recorder, '_MOST_WAITING', 10)
    recording.write(6)
    assert (recording.dropped(), recording.numbers()) == (1, [1, 2])
    monkeypatch.undo()
    recording.write(7)
    assert recording.journal.due
    recording.checkpoint()
    recording.write(8)
    assert recording.dropped() == 2
    assert recording.numbers() == [1, 2, 3, 4]
    assert recording.faults() == ['', '']
    with recording.store.reading() as conn:
        (gap,) = playback.missing(conn, playback.runs(conn))
    assert gap.why == 'Not everything could be stored'


def test_nothing_follows_a_load_that_could_not_wait(recording, monkeypatch):
    recording.write()
    monkeypatch.setattr(decision_recorder, '_MOST_WAITING', 0)
    recording.checkpoint(follows=False)
    monkeypatch.undo()
    recording.write(6)
    assert (recording.dropped(), recording.numbers()) == (1, [1, 2])


def test_many_entries_are_several_blocks(recording, monkeypatch):
    monkeypatch.setattr(decision_recorder, '_MOST_ENTRIES', 2)
    for number in range(4):
        recording.journal.put(Ended(number))
    recording.write()
    assert recording.numbers() == [1, 2, 3, 4]
    assert recording.faults() == ['']


def test_an_entry_that_cannot_be_encoded_is_dropped(recording):
    recording.journal.put(Ended(2**70))
    recording.journal.put(Ended(1))
    recording.store_all()
    assert recording.faults() == ['']
    assert (recording.dropped(), recording.numbers()) == (2, [1])
    recording.write()
    recording.checkpoint()
    assert recording.faults() == ['', '']


def test_a_checkpoint_is_due_after_twice_its_size(recording, monkeypatch):
    monkeypatch.setattr(decision_recorder, '_LEAST_BYTES', 0)
    recording.write()
    assert not recording.journal.due
    for number in range(100):
        recording.write(number)
    assert recording.journal.due


def test_a_checkpoint_is_due_before_the_last_one_is_deleted(recording):
    """Also where no entry comes meanwhile."""
    recording.writer.keep_s = 3600.0
    recording.writer.gather()
    assert not recording.journal.due
    recording.writer._began_at -= 1801.0
    recording.writer.gather()
    assert recording.journal.due
    recording.checkpoint()
    assert not recording.journal.due


def test_what_follows_a_deleted_checkpoint_is_named_and_goes_by_age(
    recording,
):
    recording.write()
    assert not recording.journal.due
    # The clock of the database steps: all of it is old.
    with recording.store.engine.begin() as conn:
        conn.execute(sa.update(BLOCKS).values(created_at=5.0))
    prune_by_age(recording)
    assert recording.numbers() == []
    recording.write()
    assert recording.journal.due
    recording.checkpoint()
    text = 'The history does not begin with a checkpoint'
    assert recording.faults() == [text, '']
    with recording.store.reading() as conn:
        found = recorded_events.of_subject(
            conn, recorded_events.Subject('host1', None), 0.0
        )
    assert [each.event for each in found] == ['gap']
    assert found[0].detail.startswith(text)
    first, *_ = recording.numbers()
    with recording.store.engine.begin() as conn:
        conn.execute(sa.delete(BLOCKS).where(BLOCKS.c.number > first))
        conn.execute(sa.update(BLOCKS).values(created_at=5.0))
    assert recording.faults() == [text]
    prune_by_age(recording)
    assert recording.numbers() == []


def prune_by_age(recording):
    def step(writer):
        stretch = recordings.excess(writer.conn, 2**30, 60.0)
        return stretch and recordings.delete(writer, stretch)

    while recording.store.write(step):
        pass


@pytest.mark.parametrize('database', DATABASES)
def test_whole_stretches_go_the_oldest_first(make_store, database):
    recording = Recording(make_store(database))
    for number in range(3):
        recording.write(number)
        recording.checkpoint()

    def prune(size, seconds=60.0, most=1):
        with recording.store.reading() as conn:
            stretch = recordings.excess(conn, size, seconds)
        return stretch and recording.store.write(
            lambda writer: recordings.delete(writer, stretch, most)
        )

    assert not prune(2**20)
    # Block by block, the last one first: the rest can be read.
    assert prune(0) == 1
    assert recording.numbers() == [1, 3, 4, 5, 6, 7]
    with recording.store.reading() as conn:
        run = recording.writer.run
        assert len(played(conn, run, 1, 1)) > 1
    while prune(0, most=2**20):
        assert recording.faults() == [''] * len(recording.faults())
    # What is being recorded stays, unless it is old.
    assert recording.numbers() == [7]
    assert prune(2**20, -60.0) == 1
    assert recording.numbers() == []


def test_the_command_says_what_is_wrong(recording, tmp_path, capsys):
    config = tmp_path / 'a.conf'
    config.write_text(
        f'[database]\nconnection = {recording.store.engine.url}\n'
    )

    def checked() -> tuple[int, list[str]]:
        words = ['history', 'check', '-f', 'json']
        status = manage.main(['--config-file', str(config), *words])
        rows = json.loads(capsys.readouterr().out)
        assert {row['daemon'] for row in rows} == {'one'}
        return status, [row['fault'] for row in rows]

    recording.write()
    recording.checkpoint()
    assert checked() == (0, ['', ''])
    with recording.store.engine.begin() as conn:
        conn.execute(sa.delete(BLOCKS).where(BLOCKS.c.number == 2))
    run = recording.writer.run
    assert checked() == (1, [f'Block 2 of run {run} is missing', ''])
