"""What would another configuration have decided on the same requests?"""

from __future__ import annotations

import contextlib
import csv
import json
import pathlib
import random
import subprocess
from typing import Any

import pytest
import sqlalchemy as sa

from benchmarks import mixes
from benchmarks.replay import Recorder
from scheduler_service import errors
from scheduler_service.cmd import adapters
from scheduler_service.cmd.commands import replay as command
from scheduler_service.cmd.connections import registration
from scheduler_service.engine.jobs import PodJob
from scheduler_service.model import Request, documents
from scheduler_service.store import clock, schema
from scheduler_service.store.records import daemons
from scheduler_service.store.writing import hosts as host_rows
from scheduler_service.testing import table as build_table
from tests.support.engines import start_engine, store_all
from tests.support.paths import PROGRAMS
from tests.support.stores import import_inventory, load_snapshot
from tests.support.waiting import LIMIT_S, wait_until

GROUP = '[filter_scheduler]\n'
PACKING = 'ram_weight_multiplier = -1.0\ncpu_weight_multiplier = -1.0\n'
SMALL = {'vcpus': 1, 'memory_mb': 1024, 'root_gb': 1}
HOSTS = [
    {'host': f'h{n}', 'vcpus': 8, 'memory_mb': 4096 + n, 'local_gb': 100,
     'ram_allocation_ratio': 1.0}
    for n in range(4)
]  # fmt: skip


class Recorded:
    """A store on which engines decide, and where that is replayed."""

    def __init__(self, store: Any, folder: Any) -> None:
        self.store, self.folder = store, folder
        url = store.engine.url.render_as_string(hide_password=False)
        self.database = f'[database]\nconnection = {url}\n'
        self.engines: list[Any] = []

    def start(self, **options: Any) -> Any:
        """Start an engine, and have its first checkpoint stored."""
        engine = start_engine(self.store, **options)
        self.engines.append(engine)
        store_all(engine)
        return engine

    def now(self) -> float:
        """Store all that was decided; return a time after that."""
        for engine in self.engines:
            store_all(engine)
        with self.store.reading() as conn:
            stored_at = clock.read(conn)
            while (now := clock.read(conn)) <= stored_at:
                pass
            return now

    def file(self, text: str = '', name: str = 'own.conf') -> str:
        path = self.folder / name
        path.write_text(self.database + GROUP + text)
        return str(path)

    def decided(self, since: float, text: str = '', **more: Any) -> Any:
        """Return what comes of a job in both parts."""
        return command.decide(self.job(since, text)._replace(**more))

    def onward(self, since: float, text: str = '', **more: Any) -> Any:
        """Return a simulation by a configuration."""
        job = self.job(since, text)._replace(**more)
        pipeline = adapters.engine(adapters.load([job.own])).hosts
        unread: list[Any] = []
        with self.store.reading() as conn:
            made = command.simulate(conn, job, lambda _: pipeline, unread)
        assert unread == []
        return made

    def job(self, since: float, text: str = '') -> command.Job:
        path = self.file(text)
        return command.Job(
            0, path, ([path], ()), since, self.now(), None, 0, command.PARTS
        )

    def stop(self) -> None:
        while self.engines:
            self.engines.pop().stop()


@pytest.fixture
def recorded(make_store, tmp_path):
    made = []

    def make(inventory: Any = None) -> Recorded:
        store = make_store('sqlite')
        import_inventory(store, inventory or {'hosts': HOSTS})
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Recorded(store, folder))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def ask(engine: Any, *requests: Any, **how: Any) -> list[list[str]]:
    """Return the hosts of each of some requests that come together."""
    asked = [
        engine.select_destinations(documents.request(each), **how)
        for each in requests
    ]
    hosts = []
    for future in asked:
        try:
            made = future.result(LIMIT_S).placements
            hosts.append([place.selected.host for place in made])
        except errors.SchedulerError:
            hosts.append([])
    return hosts


def one(number: int, **more: Any) -> dict[str, Any]:
    """Return a request for an instance, whose uuid has a number."""
    uuid = f'{number:08}-0000-4000-8000-000000000001'
    return {'flavor': SMALL, 'instance_uuids': [uuid],
            'request_id': f'req-{number}', **more}  # fmt: skip


def uuid_of(number: int) -> str:
    return one(number)['instance_uuids'][0]


def live(recorded: Recorded, engine: Any, seed: int = 1) -> list[list[str]]:
    """Have an engine go through a mix; return the hosts of each request."""
    mix, rng = mixes.cloud(160, 40, seed), random.Random(seed)
    hosts, there = [], []
    for number, (document, _) in enumerate(mix.requests):
        count = document.get('num_instances', 1)
        uuids = [f'{number:08}-0000-4000-8000-{n:012}' for n in range(count)]
        asked = {**document, 'instance_uuids': uuids,
                 'request_id': f'req-{number}'}  # fmt: skip
        hosts += ask(engine, asked)
        there += uuids
        if rng.random() < 0.4:
            engine.release([there.pop(rng.randrange(len(there)))]).result(
                LIMIT_S
            )
        if rng.random() < 0.2:
            name = f'node-{rng.randrange(40):06}'
            used = rng.randrange(10_000, 90_000)
            told = {'host': name, 'memory_mb_used': used}
            report = documents.host_report(told)
            recorded.store.write(lambda w, r=report: host_rows.report(w, [r]))
        if number in (60, 120):
            change = number == 120
            recorded.store.write(
                lambda w, c=change: host_rows.set_status(w, 'node-000003', c)
            )
    return hosts


def cloud() -> dict[str, Any]:
    mix = mixes.cloud(160, 40, 1)
    return {**mixes.inventory(40), 'server_groups': mix.server_groups}


def names(recorded: Recorded, simulation: Any) -> list[list[str]]:
    table = load_snapshot(recorded.store).hosts
    return [
        [table.host_at(table.row_of_id(number)) for number in made.hosts]
        for made in simulation.decisions
        if made is not None
    ]


def as_really(result: Any) -> bool:
    """Whether all steps of a job are as they really were."""
    steps = result.figures['steps']
    return steps['instances'] == steps['same'] > 0 == steps['differing']


def test_the_same_configuration_gives_what_was_taken(recorded):
    one_cloud = recorded(cloud())
    engine = one_cloud.start(scheduler__snapshot_max_age=0.0)
    since = one_cloud.now()
    really = live(one_cloud, engine)
    simulation = one_cloud.onward(since)
    assert names(one_cloud, simulation) == really
    figures = simulation.figures()
    assert figures['requests'] == len(really)
    assert figures['placed'] == sum(map(bool, really)) < len(really)
    result = one_cloud.decided(since)
    assert result.figures['onward'] == figures
    assert as_really(result)
    instances = sum(len(hosts) or 1 for hosts in really)
    assert result.figures['steps']['instances'] == instances
    assert result.figures['steps']['as_really'] == 100.0


def test_another_configuration_gives_what_it_would_really_take(recorded):
    plain, packing = recorded(cloud()), recorded(cloud())
    age = {'scheduler__snapshot_max_age': 0.0}
    engine = plain.start(**age)
    since = plain.now()
    spread = live(plain, engine)
    packed = live(packing, packing.start(
        **age,
        filter_scheduler__ram_weight_multiplier=-1.0,
        filter_scheduler__cpu_weight_multiplier=-1.0,
    ))  # fmt: skip
    assert packed != spread
    assert names(plain, plain.onward(since, PACKING)) == packed
    result = plain.decided(since, PACKING)
    assert 0 < result.figures['steps']['as_really'] < 100


def test_departures_make_room_and_reports_take_it(recorded):
    """For instances that are elsewhere than they really were."""
    cloud = recorded({'hosts': [
        {**HOSTS[0], 'host': name, 'memory_mb': size}
        for name, size in (('large', 8192), ('small', 4096))
    ]})  # fmt: skip
    engine = cloud.start(scheduler__snapshot_max_age=0.0)
    since = cloud.now()
    half = {'flavor': {**SMALL, 'memory_mb': 2048}}

    def told(used: int) -> None:
        report = documents.host_report(
            {'host': 'small', 'memory_mb_used': used}
        )
        cloud.store.write(lambda w: host_rows.report(w, [report]))

    really = ask(engine, one(1) | half) + ask(engine, one(2) | half)
    engine.release([uuid_of(1)]).result(LIMIT_S)
    really += ask(engine, one(3) | half)
    told(2000)
    really += ask(engine, one(4) | half)
    told(0)
    really += ask(engine, one(5, ignore_hosts=['large']) | half)
    assert really == [['large'], ['large'], ['large'], ['large'], ['small']]
    simulation = cloud.onward(since, PACKING)
    # The third has the room of the first; the fourth does not fit with the
    # report, and the last has its room.
    taken = [['small'], ['small'], ['small'], ['large'], []]
    assert names(cloud, simulation) == taken
    assert simulation.figures()['refused_by'] == {'RamFilter': 1}


def test_two_daemons_are_one_cloud(recorded):
    """Also where one of them stores late what it decided."""
    cloud = recorded()
    engines = [cloud.start(scheduler__snapshot_max_age=0.0) for _ in '12']
    since = cloud.now()
    for number in range(12):
        ask(engines[number % 2], one(number))
        if number == 6:
            engines[1].release([uuid_of(0)]).result(LIMIT_S)
    ask(engines[1], one(12) | {'flavor': {**SMALL, 'memory_mb': 9999}})
    cloud.now()
    column = schema.history.c
    runs = [each.recorder._recording.run for each in engines]
    last = sa.select(sa.func.max(column.number)).where(column.run == runs[0])
    with cloud.store.reading() as conn:
        number = conn.execute(last).scalar()
    ask(engines[0], one(14))
    # Nothing is stored after the times are changed.
    cloud.stop()
    now = cloud.now()
    with cloud.store.engine.begin() as conn:
        for condition, late in (
            (sa.and_(column.run == runs[0], column.number > number), 20),
            (sa.and_(column.run == runs[1], column.number > 1), 10),
        ):
            change = sa.update(schema.history).where(condition)
            conn.execute(change.values(created_at=column.created_at + late))
    for until, is_there in ((now + 5, False), (now + 15, True)):
        simulation = cloud.onward(since, until=until)
        ids = {each.request_id for each in simulation.decisions}
        assert ('req-12' in ids) == is_there
        assert 'req-14' not in ids
    simulation = cloud.onward(since, until=now + 60)
    made = {each.request_id: each for each in simulation.decisions}
    assert {*made} == {f'req-{number}' for number in (*range(13), 14)}
    assert made['req-12'].refused_by == 'RamFilter'
    assert as_really(cloud.decided(since, until=now + 60))


@pytest.mark.parametrize('stopped_last', [0, 1])
def test_what_others_claimed_last_is_not_left_out(recorded, stopped_last):
    """Though the daemon that is followed stops before it reads it."""
    cloud = recorded()
    first = cloud.start(scheduler__snapshot_max_age=0.0)
    since = cloud.now()
    second = cloud.start(scheduler__snapshot_max_age=0.0)
    really = ask(first, one(0)) + ask(second, one(1)) + ask(second, one(2))
    if stopped_last == 1:
        # The second one is gone on with.
        store_all(second)
        first.stop()
        really += ask(second, one(3))
    second.stop()
    cloud.stop()
    assert names(cloud, cloud.onward(since)) == really
    assert as_really(cloud.decided(since))


def test_a_restart_goes_on_with_the_instances_where_they_were(recorded):
    cloud = recorded()
    engine = cloud.start(scheduler__snapshot_max_age=0.0)
    since = cloud.now()
    first = ask(engine, one(1)) + ask(engine, one(2)) + ask(engine, one(3))
    cloud.stop()
    second = cloud.start(scheduler__snapshot_max_age=0.0)
    second.release([uuid_of(1)]).result(LIMIT_S)
    more = ask(second, one(4)) + ask(second, one(5))
    assert first + more == [['h3'], ['h2'], ['h1'], ['h3'], ['h0']]
    assert names(cloud, cloud.onward(since)) == first + more
    assert as_really(cloud.decided(since))
    # One host has room for four, and one of the five is released.
    packed = names(cloud, cloud.onward(since, PACKING))
    assert packed == [['h0']] * 5


def test_instances_that_move_are_where_they_really_are(recorded):
    cloud = recorded()
    engine = cloud.start(scheduler__snapshot_max_age=0.0)
    since = cloud.now()
    taken = ask(engine, one(1)) + ask(engine, one(2))
    assert taken == [['h3'], ['h2']]
    assert ask(engine, one(1, ignore_hosts=['h3']), move=True) == [['h1']]
    engine.confirm([uuid_of(1)]).result(LIMIT_S)
    assert ask(engine, one(3)) == [['h3']]
    assert names(cloud, cloud.onward(since)) == [['h3'], ['h2'], ['h3']]
    # The first has moved to h1: there is room for three others.
    for number in range(4, 8):
        ask(engine, one(number))
    packed = names(cloud, cloud.onward(since, PACKING))
    assert packed == [['h0']] * 5 + [['h1']] * 2


def test_pods_are_where_they_really_are(recorded):
    cloud = recorded()
    engine = cloud.start(scheduler__snapshot_max_age=0.0)
    since = cloud.now()
    pod = PodJob(
        request=Request(
            request_id='n/p', project_id='n', instance_uuids=[uuid_of(9)],
            amounts={'VCPU': 1, 'MEMORY_MB': 3000},
        ),
        host='h0', node='h0', name='p',
    )  # fmt: skip
    engine.put(pod).result(LIMIT_S)
    ask(engine, one(1))
    packed = names(cloud, cloud.onward(since, PACKING))
    assert packed == [['h0']]
    ask(engine, one(2))
    packed = names(cloud, cloud.onward(since, PACKING))
    assert packed == [['h0'], ['h1']]


def test_what_cannot_be_read_is_left_out(recorded):
    cloud = recorded()
    engine = cloud.start(scheduler__snapshot_max_age=0.0)
    since = cloud.now()
    ask(engine, one(1))
    cloud.now()
    with cloud.store.engine.begin() as conn:
        # What comes after the decision may be in a block of its own.
        number = conn.execute(sa.select(schema.decisions.c.block)).scalar()
        its_block = schema.history.c.number == number
        conn.execute(
            sa.update(schema.history).where(its_block).values(data=b'x')
        )
    result = cloud.decided(since)
    (lost,) = {*result.unread}
    assert 'is damaged' in lost.why
    assert result.figures['steps']['instances'] == 0
    # What comes after the next checkpoint is known again.
    engine._journal.due = True
    ask(engine, one(2))
    cloud.now()
    ask(engine, one(3))
    result = cloud.decided(since)
    assert {*result.unread} == {lost}
    assert as_really(result)
    assert result.figures['steps']['instances'] == 2
    assert result.figures['onward']['requests'] == 2


def test_steps_say_what_parts_a_configuration_from_what_was_taken(recorded):
    """For each instance after the real hosts of those before it."""
    cloud = recorded({'hosts': [
        {**HOSTS[0], 'host': 'memory', 'memory_mb': 8192, 'local_gb': 200},
        {**HOSTS[0], 'host': 'cpus', 'vcpus': 12},
    ]})  # fmt: skip
    engine = cloud.start(
        scheduler__snapshot_max_age=0.0,
        filter_scheduler__io_ops_weight_multiplier=0.0,
        filter_scheduler__cpu_weight_multiplier=0.5,
    )
    plain = 'io_ops_weight_multiplier = 0.0\n'
    own = f'{plain}cpu_weight_multiplier = 0.5\n'
    since = cloud.now()
    uuids = [uuid_of(number) for number in range(3)]
    (taken,) = ask(engine, one(0, instance_uuids=uuids))
    assert taken == ['memory', 'memory', 'memory']
    refused = one(4) | {'flavor': {**SMALL, 'memory_mb': 9999}}
    assert ask(engine, refused, one(5)) == [[], ['memory']]
    assert as_really(cloud.decided(since, own))
    few = 'enabled_filters = ComputeFilter,NumInstancesFilter\n'
    result = cloud.decided(
        since,
        f'{own}{few}max_instances_per_host = 2\ncpu_weight_multiplier = 9.0\n',
    )
    assert result.differing == [
        ('req-0', uuids[0], 'memory', 'cpus', 'CPUWeigher'),
        ('req-0', uuids[1], 'memory', 'cpus', 'CPUWeigher'),
        ('req-0', uuids[2], 'memory', 'cpus', 'NumInstancesFilter'),
        ('req-5', uuid_of(5), 'memory', 'cpus', 'NumInstancesFilter'),
    ]
    assert result.figures['steps'] == {
        'instances': 5, 'same': 1, 'drawn': 0, 'differing': 4,
        'as_really': 20.0,
    }  # fmt: skip


def test_a_host_among_those_that_are_drawn_from_agrees(recorded):
    cloud = recorded()
    engine = cloud.start(scheduler__snapshot_max_age=0.0)
    since = cloud.now()
    for number in range(4):
        ask(engine, one(number))
    result = cloud.decided(since, 'host_subset_size = 4\n')
    steps = result.figures['steps']
    assert steps['same'] + steps['drawn'] == 4 == steps['instances']
    # The last of three was taken.
    text = f'{PACKING}host_subset_size = 3\n'
    result = cloud.decided(since, text)
    assert result.figures['steps']['differing'] > 0


def test_requests_that_are_claimed_together(recorded):
    """And own releases, on hosts that are full."""
    cloud = recorded()
    mix = mixes.cloud(320, 12)
    document = {**mixes.inventory(12), 'server_groups': mix.server_groups}
    del document['pools']
    for host in document['hosts']:
        host['memory_mb'] //= 16
        host['memory_mb_used'] = 0
    conf = adapters.load([cloud.file()])
    recorder = Recorder(cloud.store, build_table(document), conf, 120)
    since = cloud.now()
    really = [
        recorder.decide(number, asked)
        for number, (asked, _) in enumerate(mix.requests, 1)
    ]
    recorder.look()
    made = cloud.onward(since).decisions
    assert [each.hosts for each in made] == really
    assert as_really(cloud.decided(since))
    assert 60 < really.count([]) < 280


def test_what_was_in_force_is_taken(recorded):
    """Also where it changed in between; else the present one, and a remark."""
    cloud = recorded()
    conf = adapters.load([cloud.file(PACKING)])
    kept = registration(conf, 'one', 'id')
    cloud.store.write(lambda w: daemons.register(w, kept))
    engine = cloud.start(scheduler__snapshot_max_age=0.0)
    since = cloud.now()
    ask(engine, one(1))
    cloud.now()
    engine.recorder.origin = {'configuration': kept.fingerprint}
    ask(engine, one(2))
    cloud.now()
    engine.recorder.origin = {'configuration': 'lost'}
    ask(engine, one(3))
    result = cloud.decided(since, own=None)
    # The second, by what packs.
    assert result.differing == [
        ('req-2', uuid_of(2), 'h2', 'h3', 'RAMWeigher')
    ]
    assert result.remarks == [
        'The configuration lost is not kept any more: the present one stands '
        'for it'
    ]


@pytest.fixture
def replay(run, tmp_path, ready_sqlite):
    """Give a function that runs the command: (status, report, errors)."""
    text = f'[database]\nconnection = {ready_sqlite}\n{GROUP}'
    (tmp_path / 'packing.conf').write_text(text + PACKING)

    def command(*words, config='packing.conf'):
        status, out, err = run(
            'replay', '--config', str(tmp_path / config), *words, '-f', 'json'
        )
        return status, json.loads(out) if out else None, err

    return command


def test_two_configurations_are_compared(replay, decide):
    for number in range(3):
        decide(SMALL, request_id=f'req-{number}')
    status, found, err = replay('--since', '1h')
    # The recording begins with the first daemon, which is no gap.
    assert status == 0
    assert err.startswith('The history goes back to ')
    steps, onward = found['steps'], found['onward']
    assert onward['a']['requests'] == onward['b']['requests'] == 3
    assert onward['a']['hosts_used'] == 3
    assert onward['b']['hosts_used'] == 1
    assert onward['a']['largest_that_fits'] == (
        'VCPU=1, MEMORY_MB=1024, DISK_GB=1'
    )
    assert steps['a'] == {'instances': 3, 'same': 3, 'drawn': 0,
                          'differing': 0, 'as_really': 100.0}  # fmt: skip
    assert steps['b']['differing'] == 3
    first, *_ = steps['first_differing']
    assert first['configuration'] == 'b'
    assert first['request_id'] == 'req-0'
    assert first['really'] != first['own']
    assert first['parted_by'] == 'RAMWeigher'
    _, found, _ = replay('--since', '1h', '--steps')
    assert found == {'steps': steps}
    _, found, _ = replay('--since', '1h', '--onward')
    assert found == {'onward': onward}


def test_what_is_left_out_is_counted(replay, decide, run, ready_sqlite):
    for number in range(3):
        decide(SMALL, request_id=f'req-{number}')
    engine = sa.create_engine(ready_sqlite)
    column = schema.history.c
    with engine.begin() as conn:
        blocks = conn.execute(sa.select(schema.decisions.c.block)).scalars()
        blocks = sorted(blocks)
        damaged = column.number == blocks[-1]
        conn.execute(
            sa.update(schema.history).where(damaged).values(data=b'x')
        )
    engine.dispose()
    count = blocks.count(blocks[-1])
    status, _, err = replay('--since', '1h')
    assert status == 1
    lines = [line for line in err.splitlines() if 'left out' in line]
    assert len(lines) == 1
    assert f'{count} of 3 requests are left out: Block ' in lines[0]


def test_figures_as_csv(run, tmp_path, decide, ready_sqlite):
    decide(SMALL, request_id='req-1')
    text = f'[database]\nconnection = {ready_sqlite}\n{GROUP}'
    path = tmp_path / 'own.conf'
    path.write_text(text + PACKING)
    words = 'replay', '--config', str(path), '-f', 'csv'
    status, out, _ = run(*words)
    rows = [*csv.DictReader(out.splitlines())]
    assert status == 0
    assert {row['part'] for row in rows} == {'steps', 'onward'}
    asked = [row for row in rows if row['figure'] == 'requests']
    assert asked == [{'part': 'onward', 'figure': 'requests', 'a': '1',
                      'b': '1'}]  # fmt: skip


def test_what_cannot_be_done_is_refused_first(replay, tmp_path, ready_sqlite):
    # Without the tables, whatever comes later is another error.
    pathlib.Path(ready_sqlite.removeprefix('sqlite:///')).unlink()
    for text, named in (
        ('enabled_filters = NoFilter\n', 'NoFilter'),
        ('host_subset_size = none\n', 'host_subset_size'),
    ):
        (tmp_path / 'bad.conf').write_text(GROUP + text)
        status, found, err = replay(config='bad.conf')
        assert (status, found) == (1, None)
        assert named in err
    status, _, err = replay('--trace', 'x', '--since', '1h')
    assert (status, '--trace: not with' in err) == (2, True)
    status, _, err = replay(config='none.conf')
    assert status == 1


def test_a_trace_is_decided_on_the_hosts_as_they_are(recorded, tmp_path):
    cloud = recorded()
    large = {**SMALL, 'memory_mb': 2048}
    rows = [
        {'arrival': 5, 'departure': None, 'request': {'flavor': large}},
        {'arrival': '2026-11-01T12:00', 'departure': None,
         'request': {'flavor': {**SMALL, 'memory_mb': 99_999}}},
        {'arrival': 1, 'departure': 5, 'request':
         {'flavor': large, 'num_instances': 8}},
        {'arrival': 6, 'departure': '', 'request':
         {'flavor': {**SMALL, 'name': 'tiny'}}},
        # As shared CPUs, since no host has others.
        {'arrival': 7, 'departure': 8, 'request': {'flavor':
         {**SMALL, 'extra_specs': {'hw:cpu_policy': 'dedicated'}}}},
    ]  # fmt: skip
    lines = tmp_path / 'trace.jsonl'
    lines.write_text('\n'.join(map(json.dumps, rows)) + '\n')
    table = tmp_path / 'trace.csv'
    with table.open('w') as file:
        writer = csv.DictWriter(file, ['arrival', 'departure', 'request'])
        writer.writeheader()
        texts = [json.dumps(row['request']) for row in rows]
        texts[0] = 'vcpus=1,memory_mb=2048,root_gb=1'
        for row, text in zip(rows, texts, strict=True):
            writer.writerow({**row, 'request': text})
    figures = cloud.onward(0, trace=str(lines)).figures()
    assert figures == {
        'requests': 5, 'placed': 4, 'refused_by': {'RamFilter': 1},
        'hosts_used': 2, 'unusable': figures['unusable'],
        'largest_that_fits': 'VCPU=1, MEMORY_MB=2048, DISK_GB=1',
    }  # fmt: skip
    assert cloud.onward(0, trace=str(table)).figures() == figures
    packed = cloud.onward(0, PACKING, trace=str(lines)).figures()
    assert packed['hosts_used'] == 1
    table.write_text('arrival,request\n1,vcpus=2\nx,{}\n')
    with pytest.raises(errors.InvalidRequest, match='entry 2: '):
        cloud.onward(0, trace=str(table))


@pytest.mark.slow
def test_no_process_outlives_the_command(recorded, tmp_path):
    cloud = recorded()
    lines = tmp_path / 'trace.jsonl'
    row = {'arrival': 1, 'departure': 2, 'request': {'flavor': SMALL}}
    lines.write_text(f'{json.dumps(row)}\n' * 200_000)
    path = cloud.file()
    words = ['--config-file', path, 'replay', '--config', path, '--trace',
             str(lines)]  # fmt: skip
    program = PROGRAMS / 'scheduler-manage'
    running = subprocess.Popen([program, *words], process_group=0)
    # The command, two simulations, and what tidies up after processes.
    wait_until(lambda: len(processes_of(running.pid)) > 3)
    running.kill()
    running.wait(LIMIT_S)
    wait_until(lambda: not processes_of(running.pid))


def processes_of(group: int) -> list[int]:
    """Return the processes of a group that have not ended."""
    found = []
    for path in pathlib.Path('/proc').glob('[0-9]*/stat'):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(')')[2].split()
            if int(fields[2]) == group and fields[0] != 'Z':
                found.append(int(path.parent.name))
    return found


def test_equal_seeds_draw_alike(recorded, tmp_path):
    cloud = recorded()
    lines = tmp_path / 'trace.jsonl'
    row = {'arrival': 1, 'departure': 2, 'request': {'flavor': SMALL}}
    lines.write_text(f'{json.dumps(row)}\n' * 20)
    text = 'shuffle_best_same_weighed_hosts = true\nweight_classes =\n'
    runs = [
        cloud.onward(0, text, trace=str(lines), seed=seed).decisions
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]
