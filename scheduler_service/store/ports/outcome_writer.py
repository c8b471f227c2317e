"""Records the outcomes of jobs that no transaction of their own records.

A refusal changes nothing else in the store, but its caller must not get a
claim when the message is redelivered. So it is recorded before its caller
knows. Owns the queue of such jobs and the thread that records them, many in
one transaction. Any thread may add a job.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from oslo_db import exception as db_exception

from scheduler_service import errors
from scheduler_service.engine.jobs import HostJob, Job, RequestReturned
from scheduler_service.engine.ports import Recalled
from scheduler_service.model import HostsAnswer
from scheduler_service.store.claims import lifecycle
from scheduler_service.store.claims import outcomes as stored
from scheduler_service.store.connection import Store, Writer
from scheduler_service.store.ports.recall import Outcomes, outcome_of

LOG = logging.getLogger(__name__)
_RETRY_S = 0.5
# The pause after a lock or a statement took too long, in seconds.
_PAUSE_S = 0.05
_MAX_BATCH = 200


class _Task(NamedTuple):
    """A job that gets a result or an error once that is recorded."""

    job: Job
    result: Any
    error: errors.SchedulerError | None

    def settle(self) -> None:
        Recalled(self.result, self.error).settle(self.job)

    def give_back(self) -> bool:
        """Return the request to the message bus; return whether it can be."""
        future = self.job.future
        returnable = future.returnable
        if returnable:
            future.set_exception(RequestReturned())
        return returnable

    def record(self) -> stored.RecordedOutcome:
        assert self.job.key is not None
        return outcome_of(self.job.key, self.result, self.error)


class OutcomeWriter:
    """A thread that records outcomes, then sets them on the jobs' futures."""

    def __init__(self, store: Store, recorded: Outcomes) -> None:
        self._store = store
        self._recorded = recorded
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name='outcome-writer', daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(
        self, job: Job, result: Any, error: errors.SchedulerError | None
    ) -> None:
        """Record an outcome, then set it on the job's future.

        Where the message has another outcome already, that outcome is set.
        """
        self._tasks.put(_Task(job, result, error))

    def stop(self, timeout: float) -> None:
        """Record what waits, and end the thread.

        What cannot be recorded in time gets no reply: the broker delivers the
        message again.

        :param timeout: in seconds
        """
        self._tasks.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout)
        self._stopping.set()

    def _run(self) -> None:
        while (first := self._tasks.get()) is not None:
            batch = [first]
            ended = False
            while len(batch) < _MAX_BATCH and not self._tasks.empty():
                task = self._tasks.get()
                if task is None:
                    ended = True
                    break
                batch.append(task)
            self._record(batch)
            if ended:
                return

    def _record(self, batch: Sequence[_Task]) -> None:
        """Record outcomes together; each by itself where that fails."""
        if any(task.job.redelivered for task in batch) and len(batch) > 1:
            self._record_each(batch)
            return
        try:
            stored_tasks = self._until_stored(batch)
        except errors.StoreUnavailable:
            LOG.debug('%d outcomes could not be recorded', len(batch))
        except (
            db_exception.DBDuplicateEntry,
            _ClaimedMeanwhile,
            _GivenUpMeanwhile,
        ):
            if len(batch) > 1:
                self._record_each(batch)
            else:
                self._recall(batch[0])
        except Exception:
            if len(batch) > 1:
                self._record_each(batch)
                return
            LOG.exception('The outcome of a request could not be recorded')
            batch[0].settle()
        else:
            for task in stored_tasks:
                task.settle()

    def _record_each(self, batch: Sequence[_Task]) -> None:
        for task in batch:
            self._record([task])

    def _until_stored(self, batch: Sequence[_Task]) -> Sequence[_Task]:
        """Store outcomes; wait while the database is unreachable.

        Requests that can go to another daemon do not wait for it.

        :return: those that were stored
        :raises StoreUnavailable: the daemon stops
        :raises DBDuplicateEntry: one of the messages has another outcome
        """

        def work(writer: Writer) -> None:
            stored.add(
                writer.conn,
                [
                    task.record()
                    for task in batch
                    if not _is_completed(writer, task)
                ],
            )
            for task in batch:
                if task.error is not None:
                    _check_unclaimed(writer, task.job)
                elif isinstance(task.job, HostJob) and task.job.contested:
                    _check_held(writer, task.result)

        while batch:
            try:
                self._store.write(work)
            except errors.StoreTimeout:
                self._stopping.wait(_PAUSE_S)
            except errors.StoreUnavailable:
                batch = [task for task in batch if not task.give_back()]
                if batch and self._stopping.wait(_RETRY_S):
                    raise
            else:
                break
        return batch

    def _recall(self, task: _Task) -> None:
        """Reply with the outcome that the message has already."""
        while True:
            try:
                with self._store.reading() as conn:
                    recalled = self._recorded.recall(conn, task.job)
            except errors.StoreUnavailable:
                if self._stopping.wait(_RETRY_S):
                    return
            except errors.SchedulerError as error:
                recalled = Recalled(error=error)
                break
            else:
                break
        if recalled is not None:
            # Claims that are held may not be complete: the daemon that gets
            # the request again completes them.
            refused = task.error is not None and recalled.held
            if not (refused and task.give_back()):
                recalled.settle(task.job)
        elif task.error is not None or not task.give_back():
            task.settle()


class _ClaimedMeanwhile(Exception):
    """Another copy of the message claimed; this copy is refused."""


class _GivenUpMeanwhile(Exception):
    """Another copy of the message gave up the claims of this answer."""


def _is_completed(writer: Writer, task: _Task) -> bool:
    """Whether a claim's record of a redelivered message got the result."""
    if task.error is not None or not task.job.redelivered:
        return False
    return stored.complete(writer.conn, task.record())


def _check_unclaimed(writer: Writer, job: Job) -> None:
    """Check that no other copy of a redelivered message claimed.

    :raises _ClaimedMeanwhile: one did
    """
    if not (job.redelivered and isinstance(job, HostJob)):
        return
    assert job.key is not None
    uuids = job.request.instance_uuids
    if stored.placements(writer.conn, job.key, uuids):
        raise _ClaimedMeanwhile


def _check_held(writer: Writer, answer: HostsAnswer) -> None:
    """Check that everything that an answer places is claimed there still.

    It stays so until the answer is recorded: giving claims up locks the same
    rows first.

    :raises _GivenUpMeanwhile: it is not
    """
    places = {
        placement.instance_uuid: (
            placement.selected.host,
            placement.selected.node,
        )
        for placement in answer.placements
    }
    locked = lifecycle.lock(writer.conn, places)
    rows = [*locked.items(), *lifecycle.moves_of(writer.conn, locked).items()]
    held = {(uuid, (row.host, row.node)) for uuid, row in rows}
    if not places.items() <= held:
        raise _GivenUpMeanwhile
