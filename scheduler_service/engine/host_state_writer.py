"""Writes down what hosts report, in bulk and off the way of requests.

The same thread marks hosts that fell silent, lets claims expire that nobody
confirmed, and says what the daemon suffers from.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from oslo_db import exception as db_exception

from scheduler_service import errors
from scheduler_service.engine.events import (
    Event,
    Gathered,
    InstancesSeen,
)
from scheduler_service.engine.health import Health
from scheduler_service.model import HostReport
from scheduler_service.store import heartbeats, host_reports, lifecycle
from scheduler_service.store.connection import Store, Writer, in_chunks

LOG = logging.getLogger(__name__)
_PAUSE_S = 0.5
# Somebody waits for an event to be kept; reports have time.
_SOON_S = 0.03
_TOGETHER = 500
_MOST = 200_000
_TRIES = 3


@dataclasses.dataclass(frozen=True, slots=True)
class HostStateWriterOptions:
    """Seconds; 0: never."""

    service_down_time: float = 60.0
    claim_timeout: float = 0.0


class HostStateWriter:
    """A thread that keeps what hosts and operators tell."""

    def __init__(
        self, store: Store, options: HostStateWriterOptions, health: Health
    ) -> None:
        self._store = store
        self._options = options
        self._health = health
        self._gathered = Gathered()
        self._changed = threading.Condition()
        self._stopping = False
        # Since when nothing kept heartbeats from being written.
        self._hearing_since = time.monotonic()
        self._expired_at = 0.0
        self._thread = threading.Thread(
            target=self._run, name='reporter', daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self.deaf()
        self._thread.start()

    def deaf(self) -> None:
        """Note that heartbeats may have been missed until now.

        Nobody is called silent until there was time to be heard again.
        """
        self._hearing_since = time.monotonic()

    def report(self, reports: Sequence[HostReport]) -> int:
        """Take what hosts report; the next report makes up for a lost one.

        :raises ServiceBusy: too much waits to be written
        """
        with self._changed:
            self._check_room()
            self._gathered.add_reports(reports)
        self._health.count('host_reports', by=len(reports))
        return len(reports)

    def beat(self, hosts: Sequence[str]) -> int:
        """Note that service hosts live.

        :raises ServiceBusy: too much waits to be written
        """
        with self._changed:
            self._check_room()
            self._gathered.beats.update(hosts)
        self._health.count('heartbeats', by=len(hosts))
        return len(hosts)

    def put(self, event: Event) -> Future[Any]:
        """Take an event; its future is done when it is kept.

        :raises ServiceBusy: too much waits to be written
        """
        with self._changed:
            self._check_room()
            self._gathered.events.append(event)
            self._changed.notify()
        return event.future

    def _check_room(self) -> None:
        waiting = len(self._gathered)
        if waiting >= _MOST or self._stopping:
            raise errors.ServiceBusy(
                f'{waiting} reports wait to be written', waiting=waiting
            )

    def stop(self, timeout: float) -> None:
        """Write what waits and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._wait()
            self._try(self._flush)
            self._try(self._watch)
            self._health.log_changes()

    def _wait(self) -> bool:
        """Wait for the next turn; whether it is the last."""
        with self._changed:
            if not self._gathered.events and not self._stopping:
                self._changed.wait(_PAUSE_S)
            stopping = self._stopping
        if not stopping:
            time.sleep(_SOON_S)
        return stopping

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except errors.StoreUnavailable:
            # The engine says that the database is away; once is enough.
            LOG.debug('Reports wait for the database')
            self.deaf()
        except Exception:
            LOG.exception('What hosts report could not be written down')

    def _flush(self) -> None:
        with self._changed:
            told, self._gathered = self._gathered, Gathered()
        if not told:
            return
        try:
            self._write_reports(told)
            self._write_beats(told)
            for run in told.runs():
                self._write_events(run)
        except errors.StoreUnavailable:
            told.events = [e for e in told.events if not e.future.done()]
            with self._changed:
                told.merge(self._gathered)
                self._gathered = told
            raise

    def _write_reports(self, told: Gathered) -> None:
        for part in in_chunks(list(told.reports.values()), _TOGETHER):
            self._one_by_one(
                part, lambda writer, some: host_reports.write(writer, some)
            )
        told.reports.clear()

    def _write_beats(self, told: Gathered) -> None:
        hosts = sorted(told.beats)

        def work(writer: Writer) -> int:
            heartbeats.beat(writer, hosts)
            return heartbeats.mark_up(writer, hosts)

        if hosts:
            risen = self._again(work)
            if risen:
                LOG.info('%d hosts are up again', risen)
                self._health.count('hosts_marked_up', by=risen)
        told.beats.clear()

    def _one_by_one(
        self, reports: list[HostReport], write: Callable[[Writer, Any], Any]
    ) -> None:
        """Write reports together, or else each for itself."""
        try:
            self._again(lambda writer: write(writer, reports))
        except errors.StoreUnavailable:
            raise
        except Exception as fault:
            if len(reports) == 1:
                self._health.count('host_reports_rejected')
                LOG.warning(
                    'A report of host %s cannot be kept: %s',
                    reports[0].host,
                    fault,
                )
                return
            for one in reports:
                self._one_by_one([one], write)

    def _write_events(self, run: list[Event]) -> None:
        """Write some events together, or else each for itself."""
        if len(run) > 1:
            whole = InstancesSeen(
                instances=[
                    one
                    for event in run
                    if isinstance(event, InstancesSeen)
                    for one in event.instances
                ]
            )
            try:
                changed = self._again(whole.write)
            except errors.StoreUnavailable:
                raise
            except Exception:
                LOG.debug('Some of %d events cannot be kept', len(run))
            else:
                for event in run:
                    event.future.set_result(changed)
                return
        for event in run:
            self._write_event(event)

    def _write_event(self, event: Event) -> None:
        try:
            answer = self._again(event.write)
        except errors.StoreUnavailable:
            raise
        except Exception as fault:
            LOG.warning('Something told cannot be kept: %s', fault)
            event.future.set_exception(errors.as_scheduler_error(fault))
        else:
            event.future.set_result(answer)

    def _again(self, work: Callable[[Writer], Any]) -> Any:
        """Write; again where another daemon added the same meanwhile."""
        for turn in range(_TRIES):
            try:
                return self._store.write(work)
            except db_exception.DBDuplicateEntry:
                if turn == _TRIES - 1:
                    raise
        return None

    def _watch(self) -> None:
        self._mark_silent()
        self._expire()

    def _mark_silent(self) -> None:
        limit = self._options.service_down_time
        heard = time.monotonic() - self._hearing_since
        if not limit or heard < limit:
            return
        with self._store.reading() as conn:
            found = heartbeats.silent(conn, limit)
        if not found:
            return
        down = self._store.write(
            lambda writer: heartbeats.mark_down(writer, found, limit)
        )
        if down:
            LOG.warning('%d hosts fell silent and count as down', down)
            self._health.count('hosts_marked_down', by=down)

    def _expire(self) -> None:
        limit = self._options.claim_timeout
        now = time.monotonic()
        # A twentieth late is near enough, and spares the database a look.
        if not limit or now - self._expired_at < limit / 20:
            return
        self._expired_at = now
        before = time.time() - limit
        with self._store.reading() as conn:
            if not lifecycle.any_to_expire(conn, before):
                return
        gone = self._store.write(
            lambda writer: lifecycle.expire(writer, before)
        )
        for kind, count in gone.items():
            if count:
                LOG.warning('%d %s expired unconfirmed', count, kind)
                self._health.count(f'{kind}_expired', by=count)
