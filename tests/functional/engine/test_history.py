"""What daemons record: any moment is made again as it was, to the last bit."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    rule,
    run_state_machine_as_test,
)

from scheduler_service import errors
from scheduler_service.columns.changes import Release, Update
from scheduler_service.engine import selecting
from scheduler_service.engine.jobs import PodJob
from scheduler_service.engine.journal import (
    Changed,
    Decided,
    Ended,
    PodPlaced,
)
from scheduler_service.model import Instance, Request, documents
from scheduler_service.store import schema
from scheduler_service.store.connection import Store, new_lineage
from scheduler_service.store.records import playback, recordings
from scheduler_service.store.writing import hosts as host_rows
from scheduler_service.store.writing import instances as instance_rows
from tests.support.databases import DATABASES
from tests.support.engines import start_engine, store_all
from tests.support.stores import import_inventory, wipe
from tests.support.waiting import LIMIT_S

HOSTS = [f'h{n}' for n in range(4)]
GROUPS = {
    'anti-affinity': 'aaaaaaaa-0000-4000-8000-000000000001',
    'soft-affinity': 'aaaaaaaa-0000-4000-8000-000000000002',
}
FILTERS = [
    'AvailabilityZoneFilter', 'ComputeFilter', 'RamFilter', 'CoreFilter',
    'DiskFilter', 'IoOpsFilter', 'NumInstancesFilter', 'TypeAffinityFilter',
    'ServerGroupAntiAffinityFilter', 'DifferentHostFilter', 'SameHostFilter',
    'AggregateInstanceExtraSpecsFilter',
]  # fmt: skip
NUMBERS = st.integers(0, 9)
# A group, where the same steps fail otherwise, or not, when run once more.
FAILURES = (AssertionError, errors.NotRecorded, ExceptionGroup)
# A row of the table in the hook: the masks of all filters by name, and what
# each host weighs.
Seen = list[tuple[str, bytes]]


def host(name: str, use: int = 0) -> dict[str, Any]:
    return {
        'host': name, 'vcpus': 8, 'memory_mb': 4096, 'local_gb': 100,
        'memory_mb_used': use, 'traits': ['HW_A'] if name == 'h0' else [],
        'disk_available_least': 90 if name == 'h1' else None,
        'resources': {'CUSTOM_FPGA': {'total': 4}} if name == 'h2' else {},
    }  # fmt: skip


# Of what an aggregate offers.
LICENSED, OFFERED = {'resources:CUSTOM_A': '1'}, {'CUSTOM_A': {'total': 9}}


def flavor(memory: int) -> dict[str, Any]:
    return {
        'flavor': {'vcpus': 1, 'memory_mb': memory, 'root_gb': 1,
                   'flavorid': str(memory),
                   'extra_specs': LICENSED if memory == 512 else {}},
    }  # fmt: skip


def seen(pipeline: Any, table: Any, request: Request) -> Seen:
    """Return what filters and weighers say of each host, as bytes."""
    found = [
        (result.filter.name, result.mask.tobytes())
        for result in pipeline.filter_results(table, request)
    ]
    ranking = pipeline.weigh_hosts(
        table, np.ones(len(table), np.bool_), request
    )
    if ranking is not None:
        found.append(('total', ranking.totals.tobytes()))
        found += [
            (part[0], np.array(part[1]).tobytes()) for part in ranking.parts
        ]
    return found


class Watched:
    """An engine, and what it saw at each of its decisions."""

    def __init__(self, store: Store, **options: Any) -> None:
        self.store = Store.connect(
            store.engine.url.render_as_string(hide_password=False)
        )
        self.engine = start_engine(
            self.store,
            filter_scheduler__enabled_filters=FILTERS,
            filter_scheduler__host_subset_size=2,
            **options,
        )
        self.pipeline = self.engine._hosts.pipeline
        self.decisions: list[tuple[Decided, Seen]] = []
        self.last: Seen = []
        self.released: list[list[str]] = []
        self._watch(self.pipeline, self.engine._journal)

    def _watch(self, pipeline: Any, journal: Any) -> None:
        search, put = pipeline._search, journal.put

        def searched(table: Any, request: Request, *more: Any) -> Any:
            self.last = seen(pipeline, table, request)
            return search(table, request, *more)

        def noted(entry: Any) -> None:
            if isinstance(entry, Decided) and journal._whole:
                self.decisions.append((entry, self.last))
            put(entry)

        pipeline._search, journal.put = searched, noted

    def checked(self) -> int:
        """Compare each decision with the moment that is made again."""
        store_all(self.engine)
        pipeline = self.pipeline.for_another_thread()
        expected = {made.place: what for made, what in self.decisions}
        run, found = self.engine.recorder._recording.run, set()
        with self.store.reading() as conn:
            made = playback.Playback(conn)
            for each in recordings.stretches(conn):
                if each.run != run:
                    continue
                for recorded in made.play(*each[:3]):
                    entry, block, index, overlay, *_ = recorded
                    place = run, block.number, index
                    if isinstance(entry, Changed):
                        self.released.append(entry.instances)
                    if place in expected:
                        then = playback.SnapshotAt(overlay, entry, block)
                        was = seen(pipeline, then.table, then.request)
                        assert was == expected[place], then.request
                        then.leave()
                        found.add(place)
        assert found == {*expected}
        return len(found)

    def stop(self) -> None:
        self.engine.stop()
        self.store.dispose()


class Clouds(RuleBasedStateMachine):
    """Two daemons and others that write, in any order."""

    store: Store
    leaves_out: Any = None

    def __init__(self) -> None:
        super().__init__()
        wipe(self.store)
        import_inventory(self.store, {
            'hosts': [host(name) for name in HOSTS],
            'aggregates': [
                {'id': 1, 'name': 'one', 'hosts': HOSTS[:2],
                 'metadata': {'availability_zone': 'z1', 'ssd': 'true'},
                 'resources': OFFERED},
            ],
            'server_groups': [
                {'uuid': uuid, 'policy': policy}
                for policy, uuid in GROUPS.items()
            ],
        })  # fmt: skip
        # The second has old hosts, so that it loses claims.
        self.daemons = [
            Watched(self.store, scheduler__snapshot_max_age=age)
            for age in (0.0, 60.0)
        ]
        for daemon in self.daemons:
            self._leave_out(daemon.engine._journal)
        self.placed: dict[str, str] = {}
        self.released: list[list[str]] = []

    def _leave_out(self, journal: Any) -> None:
        """Have a kind of entries never recorded, if one is named."""
        kind, take = self.leaves_out, journal.take
        if kind is not None:
            journal.take = lambda: [
                each for each in take() if not isinstance(each, kind)
            ]

    def _ask(self, daemon: int, *requests: Any, **how: Any) -> None:
        engine = self.daemons[daemon].engine
        asked = [
            engine.select_destinations(documents.request(each), **how)
            for each in requests
        ]
        for future in asked:
            with contextlib.suppress(errors.SchedulerError):
                answer = future.result(LIMIT_S)
                self.placed |= {
                    place.instance_uuid: place.selected.host
                    for place in answer.placements
                }

    def _some(self, number: int) -> list[str]:
        return [*self.placed][number % max(len(self.placed), 1) :][:1]

    @rule(
        daemon=st.integers(0, 1),
        count=st.integers(1, 3),
        times=st.integers(1, 3),
        memory=st.sampled_from([256, 1024]),
        more=st.sampled_from([
            {}, {'availability_zone': 'z1'}, {'ignore_hosts': ['h0']},
            {'instance_group': GROUPS['anti-affinity']},
            {'instance_group': GROUPS['soft-affinity']},
        ]),
        number=st.none() | NUMBERS,
        turns=st.booleans(),
    )  # fmt: skip
    def select_several(
        self, daemon, count, times, memory, more, number, turns
    ):
        hints = {}
        if number is not None and self.placed:
            hints = {'different_host': self._some(number)}
        request = {**flavor(memory), **more, 'num_instances': count,
                   'scheduler_hints': hints}  # fmt: skip
        engine = self.daemons[daemon].engine
        with pytest.MonkeyPatch.context() as patch:
            if turns:
                patch.setattr(selecting, 'TURN_S', 0.0)
                patch.setattr(engine._queue, 'others_wait', lambda lane: True)
            self._ask(daemon, *[request] * times)

    @rule(daemon=st.integers(0, 1), memory=st.sampled_from([64, 512]))
    def select(self, daemon, memory):
        self._ask(daemon, flavor(memory), flavor(memory))

    @rule()
    def select_with_old_hosts(self):
        """Have the second daemon lose what it claims on several hosts."""
        first = {**flavor(2000), 'num_instances': 2}
        self._ask(0, first)
        self._ask(1, first | {'num_instances': 4}, flavor(64))

    @rule(daemon=st.integers(0, 1), number=NUMBERS,
          kind=st.sampled_from(['move', 'move', 'release', 'pod', 'pod']),
          move=st.sampled_from([True, None]))  # fmt: skip
    def change(self, daemon, number, kind, move):
        engine, some = self.daemons[daemon].engine, self._some(number)
        if kind == 'move' and some:
            request = {**flavor(512), 'instance_uuids': some}
            there = [Instance(uuid=each, host=self.placed[each])
                     for each in some]  # fmt: skip
            self.store.write(lambda w: instance_rows.report(w, there))
            self._ask(daemon, request, move=move)
        elif kind == 'release':
            engine.release(some).result(LIMIT_S)
            self.released.append(some)
            for one in some:
                del self.placed[one]
        elif kind == 'pod':
            self._place_pod(engine, HOSTS[number % len(HOSTS)])
            self._ask(daemon, flavor(64))

    def _place_pod(self, engine, name):
        pod = PodJob(
            request=Request(
                request_id='n/p', project_id='n',
                instance_uuids=[str(uuid.uuid4())],
                amounts={'VCPU': 1, 'MEMORY_MB': 100},
            ),
            host=name, node=name, name='p',
        )  # fmt: skip
        with contextlib.suppress(errors.SchedulerError):
            engine.put(pod).result(LIMIT_S)

    @rule(
        name=st.sampled_from(HOSTS),
        number=NUMBERS,
        kind=st.sampled_from(['report', 'disable', 'seen', 'remove', 'bring',
                              'aggregate']),
    )  # fmt: skip
    def others_write(self, name, number, kind):
        """Write as hosts and operators do, or another daemon."""
        use, is_odd = 100 * number, bool(number % 2)
        if kind == 'bring':
            import_inventory(self.store, {'hosts': [host('h9', use)]})
        elif kind == 'aggregate':
            import_inventory(self.store, {'aggregates': [
                {'id': 1, 'name': 'one', 'hosts': HOSTS[number % 5:],
                 'metadata': {'availability_zone': 'z1'},
                 'resources': OFFERED if is_odd else {}},
            ]})  # fmt: skip
        told = documents.host_report({
            'host': name, 'memory_mb_used': use,
            'disk_available_least': number if is_odd else None,
        })  # fmt: skip
        there = [Instance(uuid=one, host=name) for one in self._some(number)]
        work = {
            'report': lambda w: host_rows.report(w, [told]),
            'disable': lambda w: host_rows.set_status(w, name, is_odd),
            'remove': lambda w: host_rows.remove_service_host(w, name),
            'seen': lambda w: instance_rows.report(w, there),
        }.get(kind)
        with contextlib.suppress(errors.SchedulerError):
            if work is not None:
                self.store.write(work)

    @rule(daemon=st.integers(0, 1), number=NUMBERS)
    def keep(self, daemon, number):
        """Store what waits, have a checkpoint made, or a backup restored."""
        if not number:
            with self.store.engine.begin() as conn:
                conn.execute(
                    sa.update(schema.changes).values(lineage=new_lineage())
                )
        journal = self.daemons[daemon].engine._journal
        journal.due = journal.due or number < 4
        self.daemons[daemon].engine.recorder.flush()
        if number > 7:
            # An operator turns it off, or on again.
            journal.keep(not journal.keeps)

    def teardown(self):
        try:
            for daemon in self.daemons:
                daemon.checked()
            with self.store.reading() as conn:
                faults = [
                    each.fault
                    for each in playback.check_recordings(conn)
                    if each.fault
                ]
            assert not faults
            released = [
                some for daemon in self.daemons for some in daemon.released
            ]
            assert sorted(released) == sorted(self.released)
        finally:
            for daemon in self.daemons:
                daemon.stop()


def run(store: Store, examples: int, steps: int, leaves_out: Any = None):
    kind = type('OnOne', (Clouds,), {'store': store, 'leaves_out': leaves_out})
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_any_moment_is_made_again(make_store):
    run(make_store('sqlite'), 8, 20)


@pytest.mark.db
@pytest.mark.slow
@pytest.mark.parametrize('database', DATABASES[1:])
def test_any_moment_is_made_again_on_servers(make_store, database):
    run(make_store(database), 8, 20)


@pytest.mark.parametrize('kind', [Decided, PodPlaced, Ended, Update, Changed])
def test_no_kind_of_entries_can_be_left_out(make_store, kind):
    with pytest.raises(FAILURES):
        run(make_store('sqlite'), 100, 20, kind)


@pytest.mark.db
@pytest.mark.slow
def test_releases_cannot_be_left_out(make_store):
    with pytest.raises(FAILURES):
        run(make_store('postgresql'), 100, 20, Release)
