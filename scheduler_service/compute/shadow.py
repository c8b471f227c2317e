"""Decides beside the compute service's scheduler, which stays in charge.

A copy of each request is decided as a trial. What that scheduler took is read
in the placement service, and that it refused in the databases of the cells.
Both are compared, and what it took counts for the requests after it. These
are decided in their order, once what came of those before is known, or a
little later. The thread owns all but :meth:`Shadow.take`.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import time
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.compute.endpoint import ComputeEndpoint, RebuildCheck
from scheduler_service.compute.follower import databases
from scheduler_service.compute.follower.mirror import Mirror
from scheduler_service.compute.follower.providers import ProviderFollower
from scheduler_service.compute.placement.client import PlacementClient
from scheduler_service.engine.jobs import ShadowJob
from scheduler_service.engine.messages import DeliveredMessage
from scheduler_service.model import HostsAnswer, Request
from scheduler_service.pipeline.explain import decisive_filter
from scheduler_service.planning import comparison
from scheduler_service.scheduler import Scheduler
from scheduler_service.store.connection import Store
from scheduler_service.store.records import shadow as records
from scheduler_service.store.records.shadow import Count, Verdict
from scheduler_service.worker import Worker

# How long after a request it is asked what was placed, and after which time
# nothing is expected any more, in seconds.
_LOOKS_S = (0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 40.0)
_GIVE_UP_S = 60.0
# How long a request holds those after it, and may be in flight, in seconds.
_HOLD_S, _FLIGHT_S = 2.0, 5.0
# After which time that scheduler has decided, as a rule, in seconds.
_LATE_S = 0.5
# Requests that wait to be read, and of which it is not known what came.
_MOST_WAITING, _MOST_OPEN = 1000, 2000
_DECIDE_S = 30.0
_TURN_S, _IDLE_S = 0.05, 1.0
# How often faults are read, and counts are stored, in seconds.
_FAULTS_S, _STORE_S = 0.2, 2.0
# How long it is known what was asked for, in seconds.
_SEEN_S = 900.0
# Rows have their times from several clocks, which differ by less; and how far
# back new instances are read at most. In seconds.
_CLOCKS_S, _LONGEST_S = 10, 7 * 86400
_FAULT = 'No valid host was found'
_UNDECIDED = errors.StoreUnavailable, errors.ServiceBusy
# Service host and node.
_Node = tuple[str, str]


class _RequestCopy(msgspec.Struct, eq=False):
    """A request, what we decided, and what really came of it.

    :ivar request: None: it cannot be read
    :ivar present: its instances that were on a host when it came
    :ivar came_at: monotonic time
    :ivar ours: of our trial; None: it is not decided yet
    :ivar together: whether others were in flight with it
    :ivar table: that it was decided on; None: it is not kept
    :ivar looked_s: its age when it was last asked what was placed
    :ivar places: instance -> its node
    :ivar ended: a verdict and its cause, where nothing is compared
    """

    request: Request | None
    uuids: Sequence[str]
    context: Mapping[str, Any]
    present: Mapping[str, PlacedInstance]
    came_at: float
    ours: HostsAnswer | errors.SchedulerError | None
    spent_ms: float = 0.0
    together: bool = False
    table: HostTable | None = None
    looked_s: float = 0.0
    places: dict[str, _Node] = {}
    refused: bool = False
    ended: tuple[Verdict, str] | None = None
    why: str = 'nothing within 60 s'

    @property
    def age(self) -> float:
        return time.monotonic() - self.came_at

    @property
    def known(self) -> bool:
        """Whether it is known what came of it."""
        is_placed = len(self.places) == len(self.uuids)
        return self.refused or is_placed or self.ended is not None


class Shadow(Worker):
    """A thread that decides copies of requests, and compares.

    :param client: of the placement service, which is only read
    :param rate: for how many instances that is asked in a second
    """

    def __init__(
        self,
        scheduler: Scheduler,
        store: Store,
        endpoint: ComputeEndpoint,
        rebuilds: RebuildCheck,
        rate: float,
        client: PlacementClient,
        providers: ProviderFollower,
        mirror: Mirror,
    ) -> None:
        super().__init__('shadow', scheduler.health.thread_ended)
        self._scheduler, self._store = scheduler, store
        self._endpoint, self._rebuilds = endpoint, rebuilds
        self._client, self._providers, self._mirror = client, providers, mirror
        self._rate = self._budget = rate
        self._paid_at = self._faults_at = self._stored_at = time.monotonic()
        # Service hosts on which it is not read here yet what was taken.
        self._taken: set[str] = set()
        self._inbox = collections.deque[Any](maxlen=_MOST_WAITING)
        # In the order in which they came.
        self._open: list[_RequestCopy] = []
        # Requests and instances -> monotonic time.
        self._seen: dict[Any, float] = {}
        self._counts: records.Counts = {}
        self._read_until: int | None = None

    def take(
        self, message: dict[str, Any], context: Mapping[str, Any]
    ) -> None:
        """Have a request of a caller decided soon; any thread calls it."""
        snapshot = self._scheduler.snapshot()
        if message.get('method') != 'select_destinations' or snapshot is None:
            return
        uuids = message['args']['instance_uuids']
        # Soon the instances are where that scheduler has placed them.
        present = snapshot.hosts.instances.among(uuids)
        self._inbox.append((time.monotonic(), message, context, present))
        self.wake()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._inbox:
                self._receive(*self._inbox.popleft())
            self._look()
            self._read_faults()
            self._decide()
            self._catch_up()
            if time.monotonic() - self._stored_at > _STORE_S:
                self._store_counts()
            if not self._inbox:
                is_idle = not (self._open or self._taken)
                self._pause(_IDLE_S if is_idle else _TURN_S)
        for copy in [*self._open]:
            self._end(copy, Verdict.UNKNOWN, 'the shadow was stopped')
        self._store_counts()

    def _receive(
        self,
        came_at: float,
        message: Any,
        context: Mapping[str, Any],
        present: Mapping[str, PlacedInstance],
    ) -> None:
        """Read a request, unless it came before."""
        request, fault, args = None, None, message['args']
        uuids = args['instance_uuids']
        try:
            translated = self._endpoint.translated(message, context)[1]
            self._rebuilds.verify(translated.request, context)
            request = translated.request
            uuids = request.instance_uuids
        except Exception as error:
            fault = errors.as_scheduler_error(error)
        # A move may ask again, for other hosts than those before.
        key = hash((context.get('request_id'), repr(args)))
        is_new = key not in self._seen
        self._seen.update(dict.fromkeys((key, *uuids), came_at))
        if not is_new:
            return
        copy = _RequestCopy(request, uuids, context, present, came_at, fault)
        if request is not None and request.is_rebuild:
            return self._end(copy, Verdict.SKIPPED, 'a rebuild')
        if not uuids or len(self._open) >= _MOST_OPEN:
            return self._end(copy, Verdict.SKIPPED, 'too many at a time')
        sent = DeliveredMessage(context=context)
        if fault is not None:
            self._scheduler.reject('shadow', fault, args, sent)
        else:
            self._endpoint.store_group(translated, sent)
        # One alone before it may have its answer by now.
        if len(self._in_flight()) == 1:
            self._look_at(*self._in_flight())
            self._read_faults(_FAULTS_S)
        self._catch_up()
        for each in self._in_flight():
            each.together = copy.together = True
            each.table = None
        # What was taken before does not count here yet, or what is taken for
        # this one may count already.
        copy.together |= bool(self._taken) or copy.age > _LATE_S
        self._open.append(copy)

    def _catch_up(self) -> None:
        """Have what was taken count here, unless others wait for that."""
        if self._taken and not (self._inbox or self._in_flight()):
            hosts, self._taken = self._taken, set()
            self._providers.catch_up(sorted(hosts))

    def _in_flight(self) -> list[_RequestCopy]:
        return [
            each for each in self._open
            if not each.known and each.age < _FLIGHT_S
        ]  # fmt: skip

    def _decide(self) -> None:
        """Decide those that no earlier request holds any more."""
        for copy in [*self._open]:
            if copy.ours is None:
                self._try(copy)
            self._settle(copy)
            if not copy.known and copy.age < _HOLD_S:
                return

    def _try(self, copy: _RequestCopy) -> None:
        """Decide a request as if we were in charge."""
        assert copy.request is not None
        job = ShadowJob(
            request=copy.request.with_ids(),
            moves_unsaid=bool(copy.present),
            message=DeliveredMessage(context=copy.context),
        )
        try:
            if not copy.together:
                self._scheduler.refresh(_DECIDE_S)
                copy.table = self._scheduler.newest_copy.table()
            start = time.monotonic()
            copy.ours = self._scheduler.put(job).result(_DECIDE_S)
            copy.spent_ms = 1000 * (time.monotonic() - start)
        except futures.TimeoutError:
            copy.ours = errors.StoreUnavailable()
        except Exception as fault:
            copy.ours = errors.as_scheduler_error(fault)
        # With the hosts that it cannot be on, where it moves.
        copy.request = job.attempt.request or job.request

    def _look(self) -> None:
        """Ask what was placed, where that is due."""
        for copy in [*self._open]:
            if not copy.known and copy.age > _GIVE_UP_S:
                self._end(copy, Verdict.UNKNOWN, copy.why)
            elif not copy.known and any(
                copy.looked_s < due <= copy.age for due in _LOOKS_S
            ):
                self._look_at(copy)

    def _look_at(self, copy: _RequestCopy) -> None:
        """Ask what was placed for a request, as often as that is allowed."""
        now = time.monotonic()
        earned = self._rate * (now - self._paid_at)
        self._budget = min(self._rate, self._budget + earned)
        self._paid_at = now
        if self._budget < 1:
            if not copy.looked_s and copy.age > _FLIGHT_S:
                self._end(copy, Verdict.SKIPPED, 'shadow_placement_rate')
            return
        copy.looked_s = copy.age
        for uuid in copy.uuids[len(copy.places) :]:
            self._budget -= 1
            try:
                found = self._client.allocations(uuid)['allocations']
            except errors.PlacementUnavailable as error:
                copy.why = error.name
                return
            node = self._node_of(copy, uuid, found)
            if node is None:
                return
            copy.places[uuid] = node
        self._settle(copy)

    def _node_of(
        self, copy: _RequestCopy, uuid: str, providers: Mapping[str, Any]
    ) -> _Node | None:
        """Return the node that was taken for an instance; None: none yet.

        What is evacuated has allocations on the host that it leaves, too.
        """
        snapshot, before = self._scheduler.snapshot(), copy.present.get(uuid)
        if not providers or snapshot is None:
            return None
        table = snapshot.hosts
        nodes = [
            (table.host_at(int(row)), table.node_at(int(row)))
            for provider in providers
            for row in table.rows_with('uuid', provider)[:1]
        ]
        left = before and (before.host, before.node)
        if left in nodes and copy.request:
            others = [node for node in nodes if node != left]
            stays = left[0].lower() not in copy.request.ignored
            return others[0] if others else left if stays else None
        # A host that is not mirrored yet has no name.
        return nodes[0] if nodes else ('', '')

    def _read_faults(self, sooner_s: float = 0.0) -> None:
        """Read which requests were refused."""
        waiting = {
            uuid: copy
            for copy in self._open
            if not copy.known
            for uuid in copy.uuids
        }
        now = time.monotonic()
        if not waiting or now - self._faults_at < _FAULTS_S - sooner_s:
            return
        self._faults_at = now
        since = _utc(time.time() - _GIVE_UP_S)
        found, _ = self._mirror.read_cells(
            lambda conn: databases.faults(conn, waiting, since)
        )
        for uuid, text, at in found:
            copy = waiting[uuid]
            # Rows have whole seconds.
            if copy.known or at < _utc(time.time() - copy.age - 1):
                continue
            copy.refused = (text or '').startswith(_FAULT)
            if not copy.refused:
                copy.ended = Verdict.UNKNOWN, 'another fault'
            self._settle(copy)

    def _end(self, copy: _RequestCopy, verdict: Verdict, cause: str) -> None:
        """Compare nothing of a request."""
        copy.ended = verdict, cause
        self._settle(copy)

    def _settle(self, copy: _RequestCopy) -> None:
        """Count a request that is decided, and of which all is known."""
        if not copy.known or (copy.ours is None and not copy.ended):
            return
        # First: what a plug-in raises concerns this request alone.
        if copy in self._open:
            self._open.remove(copy)
        key = copy.ended or self._compare(copy)
        sent = DeliveredMessage(context=copy.context)
        of = copy.request.request_id if copy.request else sent.sent_id()
        count = Count(1, copy.spent_ms, copy.spent_ms, of)
        self._counts[key] = self._counts.get(key, Count()).plus(count)
        self._scheduler.health.count('shadow_verdicts', str(key[0]))
        self._taken |= {host for host, _ in copy.places.values()} - {''}

    def _compare(self, copy: _RequestCopy) -> tuple[Verdict, str]:
        """Return how our decision compares, and the cause."""
        ours = copy.ours
        if isinstance(ours, _UNDECIDED):
            return Verdict.SKIPPED, ours.name
        if copy.refused:
            is_placed = isinstance(ours, HostsAnswer)
            return (Verdict.PLACES if is_placed else Verdict.SAME), ''
        theirs = [copy.places[uuid] for uuid in copy.uuids]
        if ('', '') in theirs:
            return Verdict.UNKNOWN, 'a host that is not mirrored yet'
        if isinstance(ours, errors.SchedulerError):
            cause = self._parted(copy, theirs[0], None)[1]
            cause = cause or decisive_filter(ours.facts) or ours.name
            return Verdict.REFUSES, cause
        assert ours is not None
        if copy.together:
            return Verdict.TOGETHER, ''
        chosen = [p.selected for p in ours.placements]
        nodes = [(each.host, each.node) for each in chosen]
        if sorted(nodes) == sorted(theirs):
            return Verdict.SAME, ''
        pairs = zip(theirs, nodes, strict=True)
        return self._parted(copy, *next(p for p in pairs if p[0] != p[1]))

    def _parted(
        self, copy: _RequestCopy, theirs: _Node, chosen: _Node | None
    ) -> tuple[Verdict, str]:
        """Return what keeps a host out here, or has it weigh less than ours.

        :param chosen: by us; None: we refuse
        """
        table, request = copy.table, copy.request
        row = table.row_of_node(*theirs) if table is not None else None
        if table is None or request is None or row is None:
            return Verdict.OTHER, ''
        pipeline = self._scheduler.pipeline()
        ahead = comparison.standing(pipeline, table, request, row).ahead
        if ahead is not None and ahead < pipeline.settings.host_subset_size:
            return Verdict.EQUAL, ''
        taken = table.row_of_node(*chosen) if chosen else None
        nodes = comparison.of_host(pipeline, table, request, theirs[0], taken)
        found = next(each for each in nodes if each['node'] == theirs[1])
        for result in found['filters']:
            if not result['passes']:
                return Verdict.OTHER, result['filter']
        gains = {
            each['weigher']: each['best_weight'] - each['weight']
            for each in found.get('weights', {}).get('weighers', ())
        }
        return Verdict.OTHER, max(gains, key=gains.__getitem__, default='')

    def _store_counts(self) -> None:
        """Store counts, and count the instances that nobody asked for.

        While the database is away, both are left to the next time.
        """
        now = self._stored_at = time.monotonic()
        self._seen = {
            each: at for each, at in self._seen.items() if now - at < _SEEN_S
        }
        counts, until = {**self._counts}, int(time.time()) - _CLOCKS_S
        with contextlib.suppress(errors.StoreUnavailable):
            if self._read_until is None:
                with self._store.reading() as conn:
                    self._read_until = records.read_until(conn) or until
            since = max(self._read_until, until - _LONGEST_S)
            span = _utc(since), _utc(until)
            new, is_whole = self._mirror.read_cells(
                lambda conn: databases.new_instances(conn, *span)
            )
            missed = sum(uuid not in self._seen for uuid in new)
            # Requests of some may wait.
            is_whole = is_whole and not self._inbox
            if missed and is_whole:
                counts[Verdict.MISSED, ''] = Count(missed)
            reached = until if is_whole else None
            self._store.write(lambda w: records.add(w, counts, reached))
            self._counts, self._read_until = {}, reached or self._read_until


def _utc(stamp: float) -> datetime.datetime:
    """Return a time as the compute service's rows have it."""
    made = datetime.datetime.fromtimestamp(stamp, datetime.UTC)
    return made.replace(tzinfo=None)
