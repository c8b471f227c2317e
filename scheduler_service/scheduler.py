"""What the faces of the service call: every verb of the scheduler.

Any thread may call it. A verb makes a job, queues it for the engine's
thread, and returns a future at once.
"""

from __future__ import annotations

import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from scheduler_service import errors
from scheduler_service.columns.table import Snapshot
from scheduler_service.engine.cycle import HostCycle
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import (
    Caller,
    Change,
    ClaimsJob,
    ExplainJob,
    HostJob,
    Job,
    ZoneJob,
    job_of,
)
from scheduler_service.engine.journal import Journal
from scheduler_service.engine.loop import RETRY_S, EngineLoop
from scheduler_service.engine.messages import (
    NO_MESSAGE,
    BatchFuture,
    BatchItem,
    DeliveredMessage,
    ReplyFuture,
)
from scheduler_service.engine.newest_copy import NewestCopy
from scheduler_service.engine.ports import Parts, Stage
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.engine.zones import ZoneStages
from scheduler_service.engine_config import EngineConfig
from scheduler_service.introspection import Introspection
from scheduler_service.listings import READ_S, Listings
from scheduler_service.model import (
    Entry,
    Pool,
    Request,
    ServerGroup,
    ZoneRequest,
)
from scheduler_service.pipeline import HostPipeline
from scheduler_service.stages import MakeStages
from scheduler_service.store.connection import Store
from scheduler_service.store.ports.claimer import StoreClaimer
from scheduler_service.store.ports.host_source import StoreHostSource
from scheduler_service.store.ports.quarantine import Quarantine
from scheduler_service.store.ports.recall import Outcomes
from scheduler_service.store.records import decision_list, decisions
from scheduler_service.store.workers.decision_recorder import (
    DecisionRecorder,
    LogLine,
)
from scheduler_service.store.workers.host_state_writer import HostStateWriter
from scheduler_service.store.workers.stage_undoer import StageUndoer
from scheduler_service.store.workers.store_monitor import StoreMonitor

LOG = logging.getLogger(__name__)
# How often a message is delivered again before it is quarantined.
_MAX_DELIVERIES = 5
# How many requests may wait, and how often hosts are selected again after a
# claim was lost to another daemon.
_MAX_WAITING = 1000
_CLAIM_RETRIES = 8


class Scheduler:
    """The scheduler: jobs in, one thread that decides, futures out.

    Results are those of :mod:`scheduler_service.model.reply`; errors those
    of :mod:`scheduler_service.errors`. A verb whose message may be delivered
    again takes it as ``message``: then it is not done twice.
    """

    def __init__(
        self,
        store: Store,
        config: EngineConfig,
        rng: random.Random | None = None,
    ) -> None:
        rng = rng or random.Random()  # noqa: S311 - a choice, not a secret
        self._options = options = config.options
        self.health = Health()
        self._store = store
        store.on_retry = partial(self.health.count, 'database_retries')
        self._queue = RequestQueue(_MAX_WAITING)
        self.store_monitor = StoreMonitor(store, self.health, RETRY_S)
        self.host_state_writer = HostStateWriter(store, self.health, options)
        self._journal = journal = Journal()
        journal.keep(options.keeps_history)
        self.recorder = DecisionRecorder(store, options, journal, self.health)
        self.quarantine = Quarantine(store, _MAX_DELIVERIES, self.health)
        self._undoer = StageUndoer(store, self.health)
        self.outcomes = Outcomes(store, options, self.health)
        self._source = StoreHostSource(
            store, options, self._on_history_changed, journal, self.health
        )
        parts = Parts(
            self._source,
            StoreClaimer(self._source, self.outcomes, self._undoer.released),
            self.recorder.record,
            self.health,
            self._queue,
            rng,
            journal,
        )
        self._hosts = HostCycle(parts, config.hosts, _CLAIM_RETRIES)
        self._undoer.stages = self._hosts.recorded
        self._zones = ZoneStages(parts, config.pools)
        self._loop = EngineLoop(
            parts, self._hosts, self._zones, options, self.store_monitor
        )
        self.introspection = Introspection(
            self._queue, self._loop, self._hosts, self._source, self.health
        )
        # Shared by all that read hosts on threads of their own.
        self.newest_copy = NewestCopy(self.snapshot)
        self.listings = Listings(
            store, self.newest_copy, lambda: self._hosts.pipeline
        )
        self._stopping = threading.Event()
        self.enter(config.stages)

    def enter(self, make: MakeStages) -> None:
        """Have more stages in the cycle, from the start on.

        :raises ConfigurationError: what they need does not load
        """
        self._hosts.enter(self._made(make, self._hosts.pipeline))

    def _made(self, make: MakeStages, hosts: HostPipeline) -> Sequence[Stage]:
        return make(hosts, self.health, self._queue, self._undoer)

    def check(self, config: EngineConfig) -> Callable[[], None]:
        """Check what a configuration needs; return what applies it.

        That function returns between two batches: all requests after it are
        decided by the configuration.

        :raises ConfigurationError: TLS material of an extender does not load
        """
        stages = self._made(config.stages, config.hosts)
        change = partial(self._apply, config, stages)
        return lambda: self._loop.between_batches(change).result()

    def _apply(self, config: EngineConfig, stages: Sequence[Stage]) -> None:
        self._hosts.use(config.hosts, _CLAIM_RETRIES, stages)
        self._warn_of_groups()
        self._zones.pipeline = config.pools
        self._options.use(config.options)
        self._source.forget()
        self._journal.keep(self._options.keeps_history)
        if config.timeouts != self._store.timeouts:
            self._store.timeouts = config.timeouts
            self._source.drop()

    def record_no_history(self) -> None:
        """Record nothing of the hosts; what daemons recorded stays."""
        self._journal.keep(False)

    def _warn_of_groups(self) -> None:
        """Log which policies of stored server groups nothing enforces."""
        snapshot = self._source.snapshot
        policies = self._hosts.pipeline.group_policies
        for text in policies.unenforced(snapshot.hosts) if snapshot else ():
            LOG.warning(
                'Stored server groups have a policy that nothing enforces: %s',
                text,
            )

    def start(self, is_filled: Callable[[], bool] = lambda: True) -> bool:
        """Load the snapshot, waiting for the database, and start deciding.

        :param is_filled: called until it returns whether the store has what
            requests need; it may raise StoreUnavailable
        :return: false where the wait was given up, and nothing started
        :raises SchemaMismatch: this release cannot use the tables
        """
        self.store_monitor.start()
        loaded = self.store_monitor.wait_until(
            lambda: is_filled() and bool(self._source.load()), self._stopping
        )
        if loaded:
            self._warn_of_groups()
            self.recorder.start()
            self.host_state_writer.start()
            self._undoer.start()
            self._loop.start()
        return loaded

    def stop(self, timeout: float = 30.0) -> bool:
        """Accept nothing more, and finish what was accepted.

        :param timeout: in seconds
        :return: whether everything was finished
        """
        self._queue.close()
        deadline = time.monotonic() + timeout
        self.cancel_start()
        done = self._loop.stop(timeout)
        self.host_state_writer.stop(max(1.0, deadline - time.monotonic()))
        self._undoer.stop(max(1.0, deadline - time.monotonic()))
        self._hosts.close()
        self.recorder.stop(max(1.0, deadline - time.monotonic()))
        self.store_monitor.stop(max(1.0, deadline - time.monotonic()))
        if done:
            self._source.drop()
        return done

    def cancel_start(self) -> None:
        """End a start that waits for the database."""
        self._stopping.set()

    def select_destinations(
        self,
        request: Request,
        claim: bool = True,
        explain: bool = False,
        deadline: float | None = None,
        move: bool | None = False,
        caller: Caller | None = None,
        message: DeliveredMessage = NO_MESSAGE,
        future: ReplyFuture | None = None,
    ) -> Future[Any]:
        """Select hosts for the instances of a request, and claim them.

        :param deadline: monotonic time after which the caller does not wait
        :param move: instances keep the places that they have beside it;
            None: if a host has one of them
        :param caller: whose rights are checked; None: an operator's command
        :param future: gets the result; None: a new one
        :raises ServiceBusy: too many requests wait
        """
        return self.put(
            HostJob(
                future=future or ReplyFuture(),
                request=request.with_ids(message.key(), message.sent_id()),
                claim=claim,
                explain=explain,
                deadline=deadline,
                move=bool(move),
                moves_unsaid=move is None,
                caller=caller,
                message=message,
            )
        )

    def schedule_zone(
        self,
        zone: ZoneRequest,
        caller: Caller,
        keep: bool = True,
        explain: bool = False,
        deadline: float | None = None,
        message: DeliveredMessage = NO_MESSAGE,
        pools: Mapping[str, Pool] | None = None,
    ) -> Future[Any]:
        """Choose a pool for a zone, and keep it.

        :param pools: candidates by id; None: the pools of the store
        :raises ServiceBusy: too many requests wait
        """
        return self.put(
            ZoneJob(
                request=zone.with_ids(message.key(), message.sent_id()),
                caller=caller,
                pools=pools,
                keep=keep,
                explain=explain,
                deadline=deadline,
                message=message,
            )
        )

    def schedule_many(
        self,
        entries: Sequence[Entry],
        caller: Caller,
        deadline: float | None = None,
        message: DeliveredMessage = NO_MESSAGE,
    ) -> Future[list[BatchItem]]:
        """Schedule entries together; an entry may fail by itself.

        :return: a future of one finished item for each entry, in order
        """
        batch = BatchFuture(len(entries))
        jobs: list[Job] = []
        for number, item in enumerate(batch.each):
            entry = entries[number]
            if isinstance(entry, errors.SchedulerError):
                item.set_exception(entry)
                continue
            job = job_of(entry, caller, item, message, number)
            job.deadline = deadline
            job.came_at = self._revision
            jobs.append(job)
        ids = message.sent_id(), caller.project_id
        line = LogLine('schedule_many', *ids, message)
        self.recorder.follow(batch.whole, line)
        self._queue.put_all(jobs)
        return batch.whole

    def explain(
        self,
        request: Request,
        host: str | None = None,
        deadline: float | None = None,
    ) -> Future[Any]:
        """Return what would be selected, and the result of each filter.

        :raises ServiceBusy: too many requests wait
        """
        job = ExplainJob(request=request, host=host, deadline=deadline)
        return self.put(job)

    def change(
        self,
        change: Change,
        instances: Sequence[str],
        deadline: float | None = None,
        caller: Caller | None = None,
        message: DeliveredMessage = NO_MESSAGE,
    ) -> Future[Any]:
        """Change claims; the future holds the instances that this changed.

        After ``RELEASE`` and ``DROP_MOVES``, requests that the caller's
        project sent before, or all projects, claim no more.

        :param deadline: monotonic time after which the caller does not wait
        :param caller: whose right is checked; None: an operator's command
        :raises ServiceBusy: too many requests wait
        """
        rule = change.name.lower()
        check = caller.owner_check(rule) if caller is not None else None
        # A caller without a project acts for the empty project, which owns
        # no instance.
        acts_for = caller.project_id or '' if caller and check else None
        return self.put(
            ClaimsJob(
                change=change,
                instances=instances,
                check=check,
                project_id=acts_for,
                deadline=deadline,
                message=message,
            )
        )

    # Release claims; confirm them; release the second claims of instances that
    # do not move after all.
    release = functools.partialmethod(change, Change.RELEASE)
    confirm = functools.partialmethod(change, Change.CONFIRM)
    drop_moves = functools.partialmethod(change, Change.DROP_MOVES)

    def supersede(
        self, instances: Sequence[str], message: DeliveredMessage
    ) -> Future[Any]:
        """Release what earlier messages claimed for instances.

        :param message: for whose request that is; what it claimed itself,
            where it is delivered again, stays
        """
        return self._change_again(
            Change.SUPERSEDE, instances, message, claimed_by=message.key()
        )

    def undo(
        self, instances: Sequence[str], message: DeliveredMessage, entry: int
    ) -> Future[Any]:
        """Release what an entry of a message claimed.

        :param message: whose caller cannot get the answer
        """
        return self._change_again(
            Change.UNDO, instances, message, claimed_by=message.key(entry)
        )

    def store_group(
        self,
        group: ServerGroup,
        instances: Sequence[str],
        message: DeliveredMessage,
    ) -> Future[Any]:
        """Add or complete a server group.

        :param instances: that are about to join it
        """
        return self._change_again(
            Change.STORE_GROUP, instances, message, group=group
        )

    def _change_again(
        self,
        change: Change,
        instances: Sequence[str],
        message: DeliveredMessage,
        **what: Any,
    ) -> Future[Any]:
        """Make a change that may be made again: no outcome is recorded."""
        return self.put(
            ClaimsJob(
                change=change,
                instances=instances,
                message=DeliveredMessage(lane=message.lane),
                **what,
            )
        )

    def _on_history_changed(self) -> None:
        """Count that the database went back in time.

        The heartbeats went back with it, which is no fault of the hosts.
        """
        self.health.count('database_history_changes')
        self.host_state_writer.reset_liveness()

    @property
    def _revision(self) -> int:
        """The revision of the snapshot, or a little less."""
        snapshot = self._source.snapshot
        return 0 if snapshot is None else snapshot.revision

    def put(self, job: Job) -> Future[Any]:
        """Queue a job; without a key it may raise ServiceBusy at once."""
        assert isinstance(job.future, Future)
        job.came_at = self._revision
        if isinstance(job, HostJob | ZoneJob):
            ids = job.request.request_id, job.request.project_id
            is_trial = not job.has_effect
            line = LogLine(job.verb, *ids, job.message, is_trial)
            self.recorder.follow(job.future, line)
        try:
            self._queue.put(job)
        except errors.ServiceBusy as error:
            if job.key is None:
                raise
            job.fail(error)
        return job.future

    def reject(
        self,
        method: str,
        error: errors.SchedulerError,
        document: Mapping[str, Any],
        message: DeliveredMessage,
    ) -> None:
        """Log, count and record a request that cannot become a job.

        :param document: the request, as far as it is an object
        """
        caller = message.caller(document.get('request_id'))
        LOG.warning(
            'Rejected %s: %s: %s (%s)', method, error.name, error, caller
        )
        self.health.count('requests', error.name)
        self.recorder.reject(method, error, document, message)

    def status(self) -> dict[str, Any]:
        """Return how the engine is, as plain values."""
        return self.introspection.status()

    def refresh(self, timeout: float) -> None:
        """Have what is decided next see all that is stored by now.

        :raises StoreUnavailable, TimeoutError: the database does not answer
        """

        def work() -> None:
            self._source.refresh()

        self._loop.between_batches(work).result(timeout)

    def pipeline(self) -> HostPipeline:
        """Return what hosts are selected by, for the caller's thread."""
        return self._hosts.pipeline.for_another_thread()

    def snapshot(self) -> Snapshot | None:
        """Return the newest snapshot; the engine writes to it meanwhile."""
        return self._source.snapshot

    def decisions(self, limit: int, **criteria: Any) -> list[dict[str, Any]]:
        """Return the newest decisions, without the reasons.

        :param criteria: as in :class:`decision_list.DecisionFilter`
        :raises StoreUnavailable: the database does not answer
        """
        search = decision_list.DecisionFilter(**criteria)
        with self._store.reading(READ_S) as conn:
            rows = decision_list.search(conn, search, limit)
        return [row.plain() for row in rows]

    def decision_remarks(self, **criteria: Any) -> list[str]:
        """Say of a filter and a host that no decision has what there is.

        :raises StoreUnavailable: the database does not answer
        """
        search = decision_list.DecisionFilter(**criteria)
        with self._store.reading(READ_S) as conn:
            return decision_list.remarks(conn, search)

    def decision(self, request_id: str) -> list[dict[str, Any]]:
        """Return what was decided under a request id.

        :raises DecisionNotFound: nothing is kept under it
        """
        with self._store.reading(READ_S) as conn:
            return decisions.show(conn, request_id)
