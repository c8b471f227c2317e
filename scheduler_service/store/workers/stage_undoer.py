"""Undoes what stages of the cycle did for claims that are held no more.

A :class:`StageUndoer` owns the thread that looks for such records: those of
instances that this daemon gave up at once, all others now and then. The same
thread records which calls of stages ended. Any thread may call its methods.

Calls of stages are made outside transactions: the record is marked before a
call and gets the result afterwards; meanwhile no claim is made for the
instance. Another daemon than the one that ran a stage may undo it, and twice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from functools import partial

from oslo_db import exception as db_exception

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.engine.messages import is_late
from scheduler_service.engine.ports import (
    Intent,
    Stage,
    StageRecord,
    Undone,
)
from scheduler_service.store.claims import stage_records
from scheduler_service.store.claims.stage_records import (
    BeingUndone,
    CallEnd,
    UndoAttempt,
)
from scheduler_service.store.connection import Store, Writer, in_chunks
from scheduler_service.worker import Worker, start_thread

LOG = logging.getLogger(__name__)
# The least pause between two looks at all records, in seconds, and how many
# times as long as reading them it is at least.
_PAUSE_S = 1.0
_PAUSE_RATIO = 20.0
# So many records are undone at a time.
_AT_ONCE = 50
# Pause between tries while the database is unreachable, in seconds.
_AWAY_S = 0.5
# How long other stages wait for one that undoes, in seconds.
_MAX_WAIT_S = 1.0
# The ends of calls are gathered for so long, in seconds.
_GATHER_S = 0.1
# How many ends are kept while the database is away; the oldest are dropped. A
# record without an end is looked at for as long as a call takes.
_MOST_KEPT = 1000
# For how long a claim waits until an earlier one is undone, in seconds, and
# how often it is tried where another daemon records the same.
_PATIENCE_S = 5.0
_PATIENCE_PAUSE_S = 0.1
_TRIES = 3


class StageUndoer(Worker):
    """Finds records of claims that are held no more, and has them undone.

    :ivar stages: returns the stages that record what they do, in the order of
        undoing
    """

    def __init__(self, store: Store, health: Health) -> None:
        super().__init__('stage-undoer', health.thread_ended)
        self.stages: Callable[[], Sequence[Stage]] = lambda: ()
        self._store = store
        self._health = health
        self._lock = threading.Lock()
        self._given_up: set[str] = set()
        self._ended: list[CallEnd] = []
        self._recording = threading.Lock()
        # Stage -> its last undoing, which may be under way.
        self._undoing: dict[str, futures.Future[bool]] = {}

    def released(self, instances: Iterable[str]) -> None:
        """Note that this daemon gave up claims of instances."""
        if self.stages():
            with self._lock:
                self._given_up.update(instances)
            self.wake()

    def intend(
        self,
        stage: Stage,
        claims: Callable[[], Sequence[Intent]],
        deadline: float | None = None,
        replace: bool = True,
    ) -> None:
        """Record what a stage is about to do, or may have done already.

        Waits a while for an earlier claim that is being undone, and for the
        database: only the session may be lost, so at first it does not pause.

        :param claims: returns them; it may read the database
        :param deadline: monotonic time until which its caller waits
        :param replace: whether it does anew what it did for the same claim
        :raises StageFailed: that takes too long
        :raises StoreUnavailable: the database does not answer until then
        """
        until, pause, tries = time.monotonic() + _PATIENCE_S, 0.0, _TRIES
        while True:
            try:
                self._intend(stage, claims(), replace)
                return
            except db_exception.DBDuplicateEntry:
                # Another daemon recorded the same at this moment.
                tries -= 1
                if not tries:
                    raise
            except BeingUndone as fault:
                if time.monotonic() > until:
                    text = str(fault)
                    raise errors.StageFailed(text, stage=stage.name) from fault
                time.sleep(_PATIENCE_PAUSE_S)
            except errors.StoreUnavailable:
                if is_late(deadline) or self._stopping.wait(pause):
                    raise
                until, pause = time.monotonic() + _PATIENCE_S, _AWAY_S

    def _intend(
        self, stage: Stage, claims: Sequence[Intent], replace: bool
    ) -> None:
        self._store.write(
            lambda writer: stage_records.intend(
                writer.conn, stage.name, claims, replace
            )
        )

    def ended(
        self,
        stage: Stage,
        claims: Sequence[Intent],
        made: bool,
        sure: bool = True,
    ) -> None:
        """Note that a stage's calls for claims ended; recorded soon.

        :param made: whether it is done
        :param sure: whether each call was answered
        """
        if claims:
            at = time.monotonic()
            with self._lock:
                self._ended.append(CallEnd(stage.name, claims, made, sure, at))
            self.wake()

    def record_ends(self) -> None:
        """Record all calls that ended until now.

        Where the database does not answer, they are recorded later.
        """

        def write(writer: Writer) -> None:
            for end in ended:
                stage_records.end_calls(writer.conn, end)

        # Who waits for another thread waits until its calls are recorded.
        with self._recording:
            with self._lock:
                ended, self._ended = self._ended, []
            if not ended:
                return
            try:
                self._store.write(write)
            except (errors.StoreUnavailable, db_exception.DBDuplicateEntry):
                # Another daemon may have recorded the same at this moment.
                with self._lock:
                    kept = [*ended, *self._ended]
                    self._ended = kept[-_MOST_KEPT:]

    def _run(self) -> None:
        due_at = 0.0
        while not self._stopping.is_set():
            self._stopping.wait(_GATHER_S)
            with self._lock:
                given_up, self._given_up = self._given_up, set()
            try:
                self.record_ends()
                for part in in_chunks(given_up, _AT_ONCE):
                    self.sweep(part)
                if time.monotonic() >= due_at:
                    due_at = time.monotonic() + _PAUSE_S
                    due_at = time.monotonic() + self.sweep()
            except errors.StoreUnavailable:
                LOG.debug('Stages are undone once the database is reachable')
            except Exception:
                LOG.exception('Stages could not be undone')
            left_s = max(0.0, due_at - time.monotonic())
            self._pause(min(left_s, _AWAY_S) if self._ended else left_s)
        self.record_ends()

    def sweep(self, instances: Sequence[str] | None = None) -> float:
        """Undo what is due; a failure does not stop others.

        :param instances: of these; None: of any
        :return: seconds until the next look is due
        :raises StoreUnavailable: the database does not answer
        """
        busy = {
            name for name, each in self._undoing.items() if not each.done()
        }
        stages = {
            stage.name: stage
            for stage in self.stages()
            if stage.name not in busy
        }
        if not stages:
            return _PAUSE_S
        start = time.monotonic()
        with self._store.reading() as conn:
            records = stage_records.orphans(
                conn, [*stages], _AT_ONCE, instances
            )
        pause = max(_PAUSE_S, _PAUSE_RATIO * (time.monotonic() - start))
        is_answered = False
        for name, stage in stages.items():
            # Of several records of an instance, one in each sweep.
            alone = {
                record.instance_uuid: record
                for record in records
                if record.stage == name
            }
            if alone:
                undo = partial(self._undo_each, stage, [*alone.values()])
                future = self._undoing[name] = start_thread(undo, 'undo')
                until = time.monotonic() + _MAX_WAIT_S
                while not future.done() and time.monotonic() < until:
                    futures.wait([future], _GATHER_S)
                    self.record_ends()
                is_answered |= future.done() and future.result()
        has_more = is_answered and len(records) == _AT_ONCE
        return 0.0 if has_more else pause

    def _undo_each(self, stage: Stage, records: Sequence[StageRecord]) -> bool:
        """Undo what a stage did; return whether any was undone."""
        results = self.undo(stage, records)
        for instance, result in results.items():
            if isinstance(result, Exception):
                LOG.warning(
                    'Stage %s of instance %s is undone later: %s',
                    stage.name,
                    instance,
                    result,
                )
        return any(isinstance(each, Undone) for each in results.values())

    def undo(
        self, stage: Stage, records: Sequence[StageRecord], held: bool = False
    ) -> Mapping[str, Undone | Exception]:
        """Undo what a stage did, by its records of different instances.

        :param held: whether the claims may be held: the caller gives them up
        :return: instance -> result or fault, without instances that another
            daemon claims for or undoes just now
        :raises StoreUnavailable: the database does not answer: what is to be
            undone may still be there
        """
        if not records:
            return {}

        def begin(writer: Writer) -> list[UndoAttempt]:
            begun = (
                stage_records.begin_undo(writer.conn, record, held)
                for record in records
            )
            return list(filter(None, begun))

        attempts = self._store.write(begin)
        if not attempts:
            return {}
        to_undo = [attempt.record for attempt in attempts]
        unsure: set[str] = set()
        results: Mapping[str, Undone | Exception] = {}
        try:
            results = stage.undo_all(to_undo, unsure)
        except BaseException as fault:
            failed = errors.as_scheduler_error(fault)
            results = {each.instance_uuid: failed for each in to_undo}

        def end(writer: Writer) -> None:
            for attempt in attempts:
                instance = attempt.record.instance_uuid
                result = results.get(instance)
                stage_records.end_undo(
                    writer.conn,
                    attempt,
                    result if isinstance(result, Undone) else None,
                    instance not in unsure,
                )

        self._store.write(end)
        done = sum(result is Undone.DONE for result in results.values())
        if done:
            self._health.count('stages_undone', stage.name, by=done)
        return results

    def undo_left(self, stage: Stage, instance: str) -> bool:
        """Undo what a stage did for an instance's released claims.

        Waits a while for what is being undone just now.

        :return: whether there was any such claim
        :raises Exception: of the stage: it may still be there
        """
        until, found = time.monotonic() + _PATIENCE_S, False
        while True:
            with self._store.reading() as conn:
                records = stage_records.released(conn, stage.name, instance)
            found, waits = found or bool(records), False
            for record in records:
                results = self.undo(stage, [record])
                waits = waits or not results
                for result in results.values():
                    if isinstance(result, Exception):
                        raise result
            if not waits or time.monotonic() > until:
                return found
            time.sleep(_PATIENCE_PAUSE_S)
