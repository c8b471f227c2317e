"""Writes what hosts and operators report, in bulk and off the request path.

Owns the buffer of reports, and the thread that empties it. Any thread may
report; the buffer is guarded by a condition. An event is filled in by the
thread that received it; its future is how it gets the result. The same thread
that writes marks hosts down that sent no heartbeat, expires claims that were
not confirmed, and has :class:`~scheduler_service.engine.health.Health` log
what changed.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
from oslo_db import exception as db_exception

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.engine.messages import ReplyFuture, RequestReturned
from scheduler_service.model import Aggregate, HostReport, Instance
from scheduler_service.settings import EngineOptions
from scheduler_service.store import clock
from scheduler_service.store.claims import lifecycle, released_claims
from scheduler_service.store.connection import Store, Writer, in_chunks
from scheduler_service.store.driver_errors import first_line
from scheduler_service.store.records import host_reports
from scheduler_service.store.records.host_reports import Refusals
from scheduler_service.store.writing import aggregates, instances
from scheduler_service.store.writing import hosts as host_rows
from scheduler_service.worker import Worker

LOG = logging.getLogger(__name__)
_INTERVAL_S = 0.5
# After an event, wait this long for further events: a caller waits for its
# reply. Reports and heartbeats wait for the interval.
_EVENT_DELAY_S = 0.03
_REPORTS_PER_TRANSACTION = 500
_MAX_BUFFERED = 200_000
_MAX_TRIES = 3


class Event(msgspec.Struct, eq=False):
    """A change to be written.

    :ivar future: gets what :meth:`write` returns, once it is committed
    """

    future: ReplyFuture = msgspec.field(default_factory=ReplyFuture)

    def write(self, writer: Writer) -> Any:
        """Write the event; return the reply to its reporter.

        The reply is what changed: a number, or uuids of instances.
        """


class UpdateInstances(Event, eq=False, kw_only=True):
    """Instances that hosts have now, each with its host."""

    instances: list[Instance]

    def write(self, writer: Writer) -> int:
        return instances.report(writer, self.instances)


class DeleteInstances(Event, eq=False, kw_only=True):
    """Instances that a host no longer has."""

    host: str
    uuids: list[str]

    def write(self, writer: Writer) -> list[str]:
        return lifecycle.remove_from_host(
            writer, self.host, sorted(self.uuids), resized_stay=True
        )


class SyncInstances(Event, eq=False, kw_only=True):
    """All instances that a host has."""

    host: str
    uuids: list[str]

    def write(self, writer: Writer) -> list[str]:
        return instances.sync(writer, self.host, self.uuids)


class UpdateAggregates(Event, eq=False, kw_only=True):
    """Aggregates to add, or to replace by id."""

    aggregates: list[Aggregate]

    def write(self, writer: Writer) -> int:
        return aggregates.put(writer, self.aggregates)


class DeleteAggregate(Event, eq=False, kw_only=True):
    """An aggregate to remove."""

    id: int

    def write(self, writer: Writer) -> int:
        return aggregates.remove(writer, [self.id])


class ReportBuffer:
    """Reports that were received and are not written yet.

    :ivar reports: (service host, node) -> its reports, merged into one: the
        newest value of each field
    :ivar refusals: service host -> its reports that were refused
    :ivar heartbeats: service hosts to mark as alive
    :ivar events: in the order they came
    """

    def __init__(self) -> None:
        self.reports: dict[tuple[str, str], HostReport] = {}
        self.refusals: dict[str, Refusals] = {}
        self.heartbeats: set[str] = set()
        self.events: list[Event] = []

    def __len__(self) -> int:
        waiting = len(self.reports) + len(self.refusals)
        return waiting + len(self.heartbeats) + len(self.events)

    def add_reports(self, reports: Sequence[HostReport]) -> None:
        """Add reports; a host that reports is alive."""
        for report in reports:
            key = report.host, report.node
            self.reports[key] = report.over(self.reports.get(key))
            self.heartbeats.add(report.host)

    def add_refusals(self, host: str, refusals: Refusals) -> None:
        """Add reports of a service host that were refused."""
        self.refusals[host] = refusals.after(self.refusals.get(host))

    def merge(self, newer: ReportBuffer) -> None:
        """Add reports that were received after all reports in here."""
        for host, refusals in newer.refusals.items():
            self.add_refusals(host, refusals)
        self.add_reports(list(newer.reports.values()))
        self.heartbeats |= newer.heartbeats
        self.events += newer.events

    def event_batches(self) -> Iterator[list[Event]]:
        """Yield the events in order, in batches of a transaction each.

        Consecutive updates of instances are a batch. Any other event is a
        batch by itself: these are rare.
        """
        for joins, events in itertools.groupby(
            self.events, lambda event: isinstance(event, UpdateInstances)
        ):
            if joins:
                yield list(events)
            else:
                yield from ([event] for event in events)


class HostStateWriter(Worker):
    """A thread that writes what hosts and operators report.

    :ivar is_current: whether the follower of another service has read all
        its instances; that service then ends moves; None: none is followed
    """

    def __init__(
        self, store: Store, health: Health, options: EngineOptions
    ) -> None:
        super().__init__('host-state-writer', health.thread_ended)
        self._store = store
        self._options = options
        self.is_current: Callable[[], bool] | None = None
        self._health = health
        self._buffer = ReportBuffer()
        self._lock = threading.Lock()
        # Monotonic time since which heartbeats could be received and written.
        self._listening_since = time.monotonic()
        self._expired_at = 0.0
        self._clock = clock.SteadyClock()

    def start(self) -> None:
        """Start the thread."""
        self.reset_liveness()
        super().start()

    def reset_liveness(self) -> None:
        """Record that heartbeats may have been missed until now.

        No host is marked down for ``service_down_time`` after this.
        """
        self._listening_since = time.monotonic()

    def report(self, reports: Sequence[HostReport]) -> int:
        """Accept reports of hosts; return how many.

        Reports that are lost with the daemon are superseded by the next.

        :raises ServiceBusy: too much waits to be written
        """
        with self._lock:
            self._check_room()
            self._buffer.add_reports(reports)
        self._health.count('host_reports', by=len(reports))
        return len(reports)

    def refuse(self, host: str, reason: str) -> None:
        """Record that a report of a service host is refused.

        The host keeps its values. The refusal is logged and counted, and
        stored for the operator to see.

        :param host: empty where the report does not say
        :param reason: the place, and what was expected there
        """
        self._health.count('host_reports_rejected')
        LOG.warning('Host report rejected: %s: %s', host or 'no host', reason)
        if host:
            with self._lock:
                self._buffer.add_refusals(host, Refusals(1, reason))

    def count_rejected(self, what: str) -> None:
        """Count a message with aggregates or instances that is refused."""
        self._health.count(f'{what}_rejected')

    def heartbeat(self, hosts: Sequence[str]) -> int:
        """Accept heartbeats of service hosts; return how many.

        :raises ServiceBusy: too much waits to be written
        """
        with self._lock:
            self._check_room()
            self._buffer.heartbeats.update(hosts)
        self._health.count('heartbeats', by=len(hosts))
        return len(hosts)

    def submit(self, event: Event) -> Future[Any]:
        """Accept an event; return the future that is done once it is written.

        :raises ServiceBusy: too much waits to be written
        """
        with self._lock:
            self._check_room()
            self._buffer.events.append(event)
        self.wake()
        return event.future

    def _check_room(self) -> None:
        waiting = len(self._buffer)
        if waiting >= _MAX_BUFFERED or self._stopping.is_set():
            raise errors.ServiceBusy(
                f'{waiting} reports are waiting to be written', waiting=waiting
            )

    def stop(self, timeout: float) -> bool:
        """Write what is buffered and end the thread."""
        with self._lock:
            # No report is accepted after this.
            self._stopping.set()
        return super().stop(timeout)

    def _run(self) -> None:
        stopping = False
        while not stopping:
            self._pause(_INTERVAL_S)
            stopping = self._stopping.wait(_EVENT_DELAY_S)
            self._attempt(self.flush)
            self._attempt(self._mark_stale_hosts)
            self._attempt(self._expire_claims)
            self._health.log_changes()

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except errors.StoreUnavailable:
            # The engine's thread logs that the database is unreachable.
            LOG.debug('Host reports wait until the database is reachable')
            self.reset_liveness()
        except Exception:
            LOG.exception('Host reports could not be written')

    def flush(self) -> None:
        """Write what is buffered, in the caller's thread.

        :raises StoreUnavailable: the database does not answer; what is not
            written yet stays buffered
        """
        with self._lock:
            buffered, self._buffer = self._buffer, ReportBuffer()
        try:
            for chunk in in_chunks(
                buffered.reports.values(), _REPORTS_PER_TRANSACTION
            ):
                self._write_each(
                    chunk,
                    host_rows.report,
                    lambda report, added: None,
                    lambda report, fault: self.refuse(
                        report.host, first_line(fault)
                    ),
                )
            buffered.reports.clear()
            refusals = buffered.refusals
            if refusals:
                self._write(
                    lambda writer: host_reports.record_refusals(
                        writer, refusals
                    )
                )
                refusals.clear()
            self._write_heartbeats(sorted(buffered.heartbeats))
            buffered.heartbeats.clear()
            for batch in buffered.event_batches():
                self._write_each(
                    batch,
                    _write_events,
                    lambda event, changed: event.future.set_result(changed),
                    _refuse_event,
                )
        except errors.StoreUnavailable as error:
            for event in buffered.events:
                if (
                    event.future.returnable
                    and not event.future.done()
                    and not isinstance(error, errors.StoreTimeout)
                ):
                    event.future.set_exception(RequestReturned())
            buffered.events = [
                event for event in buffered.events if not event.future.done()
            ]
            if buffered.events:
                self.wake()
            with self._lock:
                buffered.merge(self._buffer)
                self._buffer = buffered
            raise

    def _write_each(
        self,
        items: list[Any],
        write: Callable[[Writer, list[Any]], Any],
        on_written: Callable[[Any, Any], None],
        on_refused: Callable[[Any, Exception], None],
    ) -> None:
        """Write items together; each by itself where that fails."""
        try:
            result = self._write(lambda writer: write(writer, items))
        except errors.StoreUnavailable:
            raise
        except Exception as fault:
            if len(items) == 1:
                on_refused(items[0], fault)
                return
            for item in items:
                self._write_each([item], write, on_written, on_refused)
        else:
            for item in items:
                on_written(item, result)

    def _write_heartbeats(self, hosts: Sequence[str]) -> None:
        def work(writer: Writer) -> int:
            host_reports.record_heartbeats(writer, hosts)
            return host_reports.mark_up(writer, hosts)

        marked = self._write(work) if hosts else 0
        if marked:
            LOG.info('Hosts marked up: %d; heartbeats came again', marked)
            self._health.count('hosts_marked_up', by=marked)

    def _write(self, work: Callable[[Writer], Any]) -> Any:
        """Run *work* in a transaction; again after a duplicate key.

        Another daemon may add the same host or instance at the same time;
        the next try finds it there.
        """
        for tries in range(1, _MAX_TRIES + 1):
            try:
                return self._store.write(work)
            except db_exception.DBDuplicateEntry:
                if tries == _MAX_TRIES:
                    raise
        return None

    def _mark_stale_hosts(self) -> None:
        limit = self._options.service_down_time
        listening = time.monotonic() - self._listening_since
        if not limit or listening < limit:
            return
        with self._store.reading() as conn:
            now = self._clock.read(conn)
            if not self._clock.is_steady_for(limit):
                return
            stale = host_reports.stale_hosts(conn, limit, now)
        if not stale:
            return
        marked = self._store.write(
            lambda writer: host_reports.mark_down(writer, stale, limit)
        )
        if marked:
            LOG.warning(
                'Hosts marked down: %d; no heartbeat for %g s', marked, limit
            )
            self._health.count('hosts_marked_down', by=marked)

    def _expire_claims(self) -> None:
        limit = self._options.claim_timeout
        now = time.monotonic()
        # A claim may expire up to a twentieth of its time late, which saves
        # most of the queries.
        if not limit or now - self._expired_at < limit / 20:
            return
        if self.is_current is not None and not self.is_current():
            return
        self._expired_at = now
        moves = self.is_current is None
        with self._store.reading() as conn:
            now = self._clock.read(conn)
            if not released_claims.any_to_expire(conn, limit, moves, now):
                return

        def expire(writer: Writer) -> dict[str, int]:
            now = self._clock.read(writer.conn)
            if not self._clock.is_steady_for(limit):
                return {}
            return released_claims.expire(writer, limit, moves, now)

        for kind, count in self._store.write(expire).items():
            if count:
                LOG.warning(
                    '%d %s expired: not confirmed for %g s', count, kind, limit
                )
                self._health.count(f'{kind}_expired', by=count)


def _write_events(writer: Writer, batch: list[Any]) -> Any:
    if len(batch) == 1:
        return batch[0].write(writer)
    updated = [instance for event in batch for instance in event.instances]
    return instances.report(writer, updated)


def _refuse_event(event: Event, fault: Exception) -> None:
    LOG.warning('%s rejected: %s', type(event).__name__, first_line(fault))
    event.future.set_exception(errors.as_scheduler_error(fault))
