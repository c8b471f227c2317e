"""Stages that wait for another service, on threads of their own.

:class:`ReservingStage` is the base of plug-ins that reserve something for
claims. A plug-in says what to record, makes it and undoes it; the records, the
threads and the deadline are looked after here.
"""

from __future__ import annotations

import abc
import logging
import threading
import time
from collections.abc import Callable, Mapping, MutableSet, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar

import msgspec

from scheduler_service import errors, tracing
from scheduler_service.columns import HostTable
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob
from scheduler_service.engine.messages import is_late
from scheduler_service.engine.ports import (
    Intent,
    Stage,
    StageRecord,
    Undone,
)
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.model import Placement, Request
from scheduler_service.pipeline import HostPipeline
from scheduler_service.settings import Settings
from scheduler_service.store.workers.stage_undoer import StageUndoer

LOG = logging.getLogger(__name__)
# A job that waits for a thread for longer is recorded anew, in seconds.
_RECORDED_S = 60.0
# How many records are undone at the same time: each waits for a service.
_UNDOERS = 4
# Makes stages: of the pipeline of hosts, the health, what they take jobs from
# and give them back to, and what undoes what they did.
MakeStages = Callable[
    [HostPipeline, Health, RequestQueue, StageUndoer], Sequence[Stage]
]


class WaitingStage(Stage):
    """A stage with threads that work on the jobs that it takes away.

    :param threads: how many there are
    :param queue: lends jobs, and gets each of them back
    """

    def __init__(self, name: str, threads: int, queue: RequestQueue) -> None:
        self._queue = queue
        self._threads = ThreadPoolExecutor(threads, name)
        self._lock = threading.Lock()
        # Jobs that are not back.
        self._pending = 0
        self._retired = False

    def retire(self) -> None:
        """Take no more jobs, and stop when the last one is back."""
        with self._lock:
            self._retired = True
            idle = not self._pending
        if idle:
            self.stop()

    def stop(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _take_away(self, jobs: Sequence[HostJob]) -> None:
        """Take jobs away; :meth:`_give_back` has to follow for each."""
        with self._lock:
            self._pending += len(jobs)
        self._queue.lend(jobs)

    def _give_back(self, job: HostJob) -> None:
        with self._lock:
            self._pending -= 1
            is_last = self._retired and not self._pending
        self._queue.give_back(job)
        if is_last:
            self.stop()

    def _lend(self, job: HostJob, work: Callable[[], None]) -> None:
        """Run *work* on a thread, and give the job back after it.

        A job whose caller stopped waiting comes back with TooLate instead.

        :param work: sets what the job comes back with
        """
        self._take_away([job])
        self._threads.submit(self._work_on, job, work)

    def _work_on(self, job: HostJob, work: Callable[[], None]) -> None:
        try:
            if is_late(job.deadline):
                raise errors.TooLate()
            with tracing.working_on(job.message.trace):
                work()
        except errors.SchedulerError as error:
            job.attempt.failure = error
        except BaseException as fault:
            LOG.exception('Calling another service for a request failed')
            job.attempt.failure = errors.as_scheduler_error(fault)
        finally:
            self._give_back(job)


class Reservation(msgspec.Struct, frozen=True):
    """What a stage reserves for an instance on a host.

    :ivar document: what the plug-in records of it, which JSON can represent
    """

    instance_uuid: str
    host: str
    node: str
    document: dict[str, Any]


class HostRefused(Exception):
    """The host cannot have the instance; its text says why.

    The request is scheduled again, without the host.
    """


class ReservingStage(WaitingStage, abc.ABC):
    """Base of plug-ins that reserve something for each claim.

    A method may be called again for the same instance and host: after a fault,
    or on another daemon. Different threads call them.

    :cvar threads: requests that it works on at the same time
    """

    is_configured = is_recorded = True
    threads: ClassVar[int] = 8

    def __init__(
        self,
        name: str,
        after: str,
        settings: Settings,
        queue: RequestQueue,
        undoer: StageUndoer,
    ) -> None:
        super().__init__(name, self.threads, queue)
        # A name of this daemon's configuration, as the place is.
        self.name = name  # type: ignore[misc]
        self.after = after
        self._settings, self._undoer = settings, undoer

    @abc.abstractmethod
    def document(
        self, request: Request, placement: Placement, settings: Settings
    ) -> Mapping[str, Any] | None:
        """Return what to record for an instance; None: nothing is reserved.

        The engine's thread calls it: it must not wait.
        """

    @abc.abstractmethod
    def make(self, reservation: Reservation, settings: Settings) -> None:
        """Make a reservation, or find that it was made before.

        :raises HostRefused: the host cannot have the instance
        :raises Exception: it is not known whether it is made; the request
            fails, and it is undone
        """

    @abc.abstractmethod
    def undo(self, reservation: Reservation, settings: Settings) -> None:
        """Undo a reservation, if there is one.

        :raises Exception: it is not known whether it is undone: that is tried
            again
        """

    def prepare(self, job: HostJob) -> None:
        """Have reservations recorded with the claim."""
        if job.is_first_claim:
            job.attempt.records[self.name] = self._documents(job)

    def _documents(self, job: HostJob) -> dict[str, str]:
        """Return what is to be reserved for a job, by instance."""
        made = {}
        for placement in job.attempt.placements:
            try:
                of_plugin = self.document(
                    job.request, placement, self._settings
                )
                if of_plugin is not None:
                    selected = placement.selected
                    reservation = Reservation(
                        placement.instance_uuid,
                        selected.host,
                        selected.node,
                        dict(of_plugin),
                    )
                    encoded = msgspec.json.encode(reservation).decode()
                    made[placement.instance_uuid] = encoded
            except BaseException as fault:
                raise self._failed(fault) from fault
        return made

    def _failed(
        self, fault: BaseException, **facts: Any
    ) -> errors.StageFailed:
        return errors.StageFailed(
            f'The stage {self.name} failed: {errors.text_of(fault)}',
            stage=self.name,
            **facts,
        )

    def run(self, jobs: Sequence[HostJob], table: HostTable) -> None:
        """Take away jobs that something is to be reserved for."""
        since = time.monotonic()
        for job in jobs:
            if job.attempt.records.get(self.name) != {}:
                self._lend(job, partial(self._reserve, job, since))

    def _reserve(self, job: HostJob, since: float) -> None:
        """Make the reservations of a job; those of no record yet after that.

        Earlier reservations for the same claims are recorded already, as a
        rule, and are waited for where they are being undone.
        """
        documents = job.attempt.records.get(self.name)
        is_recorded = documents is not None
        if documents is None:
            documents = self._documents(job)
        hosts = {
            placement.instance_uuid: placement.selected.uuid
            for placement in job.attempt.placements
        }
        intents = [(uuid, hosts[uuid], of) for uuid, of in documents.items()]
        if not is_recorded or time.monotonic() - since > _RECORDED_S:
            try:
                self._undoer.intend(self, lambda: intents, job.deadline)
            except errors.StageFailed as being_undone:
                for placement in job.attempt.placements:
                    host = placement.selected.host
                    job.excluded_hosts[host] = str(being_undone)
                raise
        made: list[Intent] = []
        is_answered = True
        try:
            for intent in intents:
                if is_late(job.deadline):
                    raise errors.TooLate()
                is_answered = False
                self._make(job, intent)
                is_answered = True
                made.append(intent)
        except HostRefused as refusal:
            is_answered = True
            raise self._failed(refusal) from None
        finally:
            rest = [each for each in intents if each not in made]
            self._undoer.ended(self, made, True)
            self._undoer.ended(self, rest, False, is_answered)

    def _make(self, job: HostJob, intent: Intent) -> None:
        reservation = msgspec.json.decode(intent[2], type=Reservation)
        try:
            self.make(reservation, self._settings)
        except HostRefused as refusal:
            LOG.info(
                'Stage %s: host %s refused instance %s: %s',
                self.name,
                reservation.host,
                reservation.instance_uuid,
                refusal,
            )
            job.excluded_hosts[reservation.host] = str(refusal)
            raise
        except errors.SchedulerError:
            raise
        except BaseException as fault:
            LOG.warning(
                'Stage %s failed for instance %s on host %s: %s',
                self.name,
                reservation.instance_uuid,
                reservation.host,
                errors.text_of(fault),
                # A service that does not answer is no fault of the program.
                exc_info=not isinstance(fault, OSError),
            )
            raise self._failed(fault, instance=intent[0]) from fault

    def undo_all(
        self, records: Sequence[StageRecord], unsure: MutableSet[str]
    ) -> dict[str, Undone | Exception]:
        """Undo reservations by their records."""
        with ThreadPoolExecutor(_UNDOERS, 'undo') as pool:
            results = dict(pool.map(self._undo, records))
        unsure |= {
            instance
            for instance, result in results.items()
            if isinstance(result, Exception)
        }
        return results

    def _undo(self, record: StageRecord) -> tuple[str, Undone | Exception]:
        result: Undone | Exception = Undone.DONE
        try:
            reservation = msgspec.json.decode(
                record.document, type=Reservation
            )
            self.undo(reservation, self._settings)
        except Exception as fault:
            result = fault
        except BaseException as fault:
            result = self._failed(fault)
        return record.instance_uuid, result
