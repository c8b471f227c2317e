"""Stores decisions with their reasons, and logs a line for each decision.

Owns both queues, and the thread that empties them off the request path.
Whichever thread decides or sets a result adds to a queue, which is a deque
and needs no lock. A message with many requests gets one line. The same thread
counts what it stores, for a row of rates each minute, and prunes old
decisions, rates, entries of the change feed, outcomes of requests and entries
of the quarantine.

The same thread has a :class:`RecordingWriter`, which makes blocks of what the
engine's journal has, and stores them.
"""

from __future__ import annotations

import collections
import logging
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from importlib import metadata
from typing import Any

import msgspec
from oslo_context import context

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob, ZoneJob
from scheduler_service.engine.journal import Checkpoint, Journal
from scheduler_service.engine.messages import DeliveredMessage, RequestReturned
from scheduler_service.model import (
    HostsAnswer,
    PoolAnswer,
    Request,
)
from scheduler_service.settings import EngineOptions
from scheduler_service.store import clock
from scheduler_service.store.claims import outcomes
from scheduler_service.store.connection import (
    PersistentWriter,
    Store,
    Writer,
)
from scheduler_service.store.reading import change_feed
from scheduler_service.store.records import (
    daemons,
    decisions,
    quarantine,
    rates,
    recording_format,
    recordings,
)
from scheduler_service.store.records.decisions import Decision
from scheduler_service.worker import Worker

LOG = logging.getLogger(__name__)
_INTERVAL_S = 0.2
# Decisions, and lines, that wait. Beyond it the oldest are dropped.
_MAX_WAITING = 20_000
_PER_TRANSACTION = 500
# The largest number of new decisions before old ones are pruned.
_PRUNE_AFTER = 5_000
_PRUNE_STEP = 1_000
_PRUNE_CHANGES_EVERY_S = 60.0
# A daemon that did not read for longer than this reloads its snapshot.
_CHANGES_KEPT_S = 3600.0
_HOSTS_NAMED = 5
_CONTEXT = ('user_id', 'project_id', 'domain_id', 'global_request_id')
# The most characters of a caller's text that are written.
_MAX_LENGTH = 255
# What may wait for the database, in bytes, and what a transaction stores.
_MOST_WAITING = 64 * 2**20
_BYTES_PER_TRANSACTION = 8 * 2**20
# In a block: a few kilobytes each at most.
_MOST_ENTRIES = 2000
# A checkpoint follows after this many seconds with an entry, or where the
# blocks since the last one are twice as large as it, and this large at least.
_CHECKPOINT_S = 3600.0
_LEAST_BYTES = 2**22
# After a fault it is tried again in this many seconds.
_AGAIN_S = 60.0


class LogLine(msgspec.Struct):
    """The parts of a decision's line, but for its outcome.

    :ivar verb: the method
    :ivar is_trial: whether nothing is claimed or stored
    :ivar queued_at: monotonic time
    """

    verb: str
    request_id: str | None
    project_id: str | None
    message: DeliveredMessage
    is_trial: bool = False
    queued_at: float = msgspec.field(default_factory=time.monotonic)


class DecisionRecorder(Worker):
    """A thread that stores decisions and writes their lines.

    Decisions wait while the database is unreachable; lines are late then,
    with the times of the decisions.

    :ivar origin: what each decision says of the daemon: its name, and the
        fingerprint of its configuration
    """

    def __init__(
        self,
        store: Store,
        options: EngineOptions,
        journal: Journal | None = None,
        health: Health | None = None,
    ) -> None:
        on_end = health.thread_ended if health else None
        super().__init__('decision-recorder', on_end)
        self._store = store
        self._writer = PersistentWriter(store)
        self._options = options
        self.origin: Mapping[str, str] = {}
        # Each look at it reads a file.
        self._release = metadata.version('scheduler-service')
        self._recording = RecordingWriter(
            journal or Journal(), self._signature, health or Health()
        )
        self._rates = rates.RateCounter()
        self._stored_since_pruning = 0
        self._waiting = collections.deque[Decision](maxlen=_MAX_WAITING)
        self._lines = collections.deque[tuple[LogLine, Future[Any], float]](
            maxlen=_MAX_WAITING
        )
        self._storing = threading.Lock()

    def put(self, decision: Decision) -> None:
        """Have a decision stored soon."""
        if self._options.decisions_kept:
            decision.encode(self.origin)
            self._waiting.append(decision)

    def record(
        self,
        job: HostJob | ZoneJob,
        outcome: str,
        reasons: Mapping[str, Any],
    ) -> None:
        """Have the decision on a job stored soon."""
        if not self._options.decisions_kept:
            return
        request, message, caller = job.request, job.message, job.caller
        made = job.decided if isinstance(job, HostJob) else None
        # What was chosen for it as it is has it in the recording alone.
        lacks_request = (
            outcome == 'chosen'
            and made is not None
            and made.request is request
        )
        why = {
            'project_id': request.project_id,
            'user_id': message.sent_id('user_id')
            or (caller and caller.credentials.get('user_id')),
            'duration_ms': round(1000 * (time.monotonic() - job.queued_at), 1),
            **({} if lacks_request else decisions.asked(job.verb, request)),
            **reasons,
        }
        if isinstance(request, Request) and 'placements' not in why:
            why['instance_uuids'] = request.instance_uuids
        request_id = str(request.request_id)
        ids = request_id, job.verb, outcome, why, *message.origin(request_id)
        self.put(Decision(*ids, made, lacks_request))

    def _signature(self) -> tuple[str, str, str]:
        """Return what a block says of the daemon."""
        origin = self.origin.get
        return (
            origin('daemon', ''),
            self._release,
            origin('configuration', ''),
        )

    def reject(
        self,
        kind: str,
        error: errors.SchedulerError,
        document: Mapping[str, Any],
        message: DeliveredMessage,
    ) -> None:
        """Have the refusal of an invalid or forbidden request stored soon.

        :param kind: the method
        :param document: the request, with values of any type
        """
        sent = message.context
        request_id = (
            _printable(document.get('request_id')) or message.sent_id()
        )
        if request_id is None:
            return
        uuids = document.get('instance_uuids')
        uuids = uuids if isinstance(uuids, list) else ()
        reasons = {
            'project_id': _printable(sent.get('project_id')),
            'user_id': _printable(sent.get('user_id')),
            'instance_uuids': [uuid for uuid in uuids if _printable(uuid)],
            'error': error.to_dict(),
        }
        ids = message.origin(request_id)
        self.put(Decision(request_id, kind, error.name, reasons, *ids))

    def follow(self, future: Future[Any], line: LogLine) -> None:
        """Write a line when a request, or all of a message, is decided."""
        if self._options.log_decisions and LOG.isEnabledFor(logging.INFO):
            # The callback does not know the job: a reference cycle.
            future.add_done_callback(partial(self._decided, line))

    def _decided(self, line: LogLine, future: Future[Any]) -> None:
        self._lines.append((line, future, time.monotonic()))

    def stop(self, timeout: float) -> bool:
        """Store and write what waits, and end the thread."""
        ended = super().stop(timeout)
        self._write_lines()
        return ended

    def flush(self, is_last: bool = False) -> None:
        """Write and store what waits, in the caller's thread.

        :param is_last: store the rates of this minute, too
        :raises StoreUnavailable: the database does not answer; what is not
            stored yet stays in the queue
        """
        self._write_lines()
        # Lock: a batch of another thread is stored when this returns, too.
        with self._storing:
            self._store_waiting()
            daemon = self.origin.get('daemon', '')
            self._rates.store(self._writer.write, daemon, is_last)

    def _store_waiting(self) -> None:
        # What comes now waits for its place in the recording.
        left = len(self._waiting)
        keep = self._options.decisions_kept
        self._recording.keep_s = self._history_kept_s or math.inf
        self._recording.gather()
        while left or self._recording:
            # A decision is stored with its block or after it.
            is_last = self._recording.fits_transaction
            count = min(_PER_TRANSACTION, left) if is_last else 0
            left -= count
            batch = [self._waiting.popleft() for _ in range(count)]

            def store(
                writer: Writer, batch: Sequence[Decision] = batch
            ) -> tuple[int, int]:
                blocks = self._recording.store(writer)
                return blocks, decisions.record(writer, batch)

            try:
                blocks, more = self._writer.write(store)
            except errors.StoreUnavailable:
                self._waiting.extendleft(reversed(batch))
                raise
            self._recording.stored(blocks)
            self._rates.count(batch)
            self._stored_since_pruning += more
            if self._stored_since_pruning > min(_PRUNE_AFTER, keep // 10):
                self._stored_since_pruning = 0
                self._repeat(
                    partial(decisions.prune, keep=keep, most=_PRUNE_STEP)
                )

    @property
    def _history_kept_s(self) -> float:
        return 86_400 * self._options.history_keep_days

    def _prune_by_age(self) -> None:
        max_age = self._options.decisions_max_age
        if max_age:
            with self._store.reading() as conn:
                before = clock.read(conn) - max_age
            self._repeat(
                partial(decisions.purge, before=before, most=_PRUNE_STEP)
            )

    def _prune_recordings(self) -> None:
        keep_s, most = self._history_kept_s, self._options.history_keep_bytes
        with self._store.reading() as conn:
            now = clock.read(conn)
        before = now - keep_s
        self._store.write(partial(rates.prune, before=now - rates.KEPT_S))
        self._repeat(
            partial(daemons.prune_events, before=before, most=_PRUNE_STEP)
        )
        while not self._stopping.is_set():
            with self._store.reading() as conn:
                stretch = recordings.excess(conn, most, keep_s)
            if stretch is None:
                return
            self._repeat(partial(recordings.delete, stretch=stretch))

    def _repeat(self, delete: Callable[..., int]) -> None:
        # Small steps, each a transaction: claims wait for none of them.
        while not self._stopping.is_set():
            if not self._store.write(delete):
                return
            self._write_lines()

    def _run(self) -> None:
        pruned_at = time.monotonic()
        while not self._stopping.wait(_INTERVAL_S):
            self._attempt(self.flush)
            if time.monotonic() - pruned_at > _PRUNE_CHANGES_EVERY_S:
                pruned_at = time.monotonic()
                self._attempt(self._prune_changes)
                self._attempt(self._prune_by_age)
                self._attempt(self._prune_recordings)
        self._recording.stop()
        self._attempt(partial(self.flush, is_last=True))
        self._writer.drop()

    def _prune_changes(self) -> None:
        """Prune changes that every daemon has read, and old outcomes."""

        def work(writer: Writer) -> None:
            change_feed.prune(writer.conn, _CHANGES_KEPT_S)
            quarantine.prune(writer, _CHANGES_KEPT_S)
            outcomes.prune(writer, self._options.outcome_retention)

        self._store.write(work)

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except errors.StoreUnavailable:
            # The engine's thread logs that the database is unreachable.
            LOG.debug('Decisions wait until the database is reachable')
        except Exception:
            LOG.exception('Decisions could not be stored')

    def _write_lines(self) -> None:
        while self._lines:
            line, future, decided_at = self._lines.popleft()
            try:
                _write(line, future, decided_at)
            except Exception:
                LOG.exception('The line of a decision could not be written')


def _write(line: LogLine, future: Future[Any], decided_at: float) -> None:
    if future.cancelled():
        return
    fault = future.exception()
    if isinstance(fault, RequestReturned):
        # Another daemon decides.
        return
    outcome = _outcome(fault, None if fault else future.result())
    trial = ', nothing claimed' if line.is_trial else ''
    record = LOG.makeRecord(
        LOG.name,
        logging.INFO,
        __file__,
        0,
        '%s: %s%s; %.1f ms, request %s, project %s',
        (
            line.verb,
            outcome,
            trial,
            (decided_at - line.queued_at) * 1000,
            _printable(line.request_id) or '-',
            _printable(line.project_id) or '-',
        ),
        None,
        extra={'context': _context(line)},
    )
    # The line was late, the decision was not.
    record.created -= time.monotonic() - decided_at
    record.msecs = record.created % 1 * 1000
    LOG.handle(record)


def _outcome(fault: BaseException | None, result: Any) -> str:
    if fault is not None:
        return errors.as_scheduler_error(fault).name
    if isinstance(result, HostsAnswer):
        hosts = [place.selected.host for place in result.placements]
        return f'chosen {_host_list(hosts)}'
    if isinstance(result, PoolAnswer):
        return f'chosen pool {result.pool_name or result.pool_id}'
    faults = [item.exception() for item in result]
    counts = Counter(
        'chosen' if fault is None else errors.as_scheduler_error(fault).name
        for fault in faults
    )
    words = [f'{n} {word}' for word, n in counts.most_common()]
    return ', '.join([f'{len(result)} requests', *words])


def _host_list(hosts: Iterable[str]) -> str:
    """Return the names of hosts, each with its instances; the first few."""
    counts = Counter(hosts)
    listed = [
        host if count == 1 else f'{host} x {count}'
        for host, count in list(counts.items())[:_HOSTS_NAMED]
    ]
    more = len(counts) - len(listed)
    if more:
        listed.append(f'{more} more')
    return f'host{"s" if len(counts) > 1 else ""} {", ".join(listed)}'


def _context(line: LogLine) -> context.RequestContext:
    sent = line.message.context
    values = {name: _printable(sent.get(name)) for name in _CONTEXT}
    values['project_id'] = values['project_id'] or _printable(line.project_id)
    return context.RequestContext(
        **values,
        request_id=line.message.sent_id() or _printable(line.request_id),
        overwrite=False,
    )


def _printable(text: Any) -> str | None:
    """Return a text of a caller for the log: escaped and shortened."""
    if not text or not isinstance(text, str):
        return None
    return (text if text.isprintable() else ascii(text))[:_MAX_LENGTH]


class RecordingWriter:
    """Makes blocks and stores them.

    :param origin: returns the daemon's name, its release, and the fingerprint
        of its configuration
    :param health: counts entries that are dropped
    :ivar run: a number that no other run of a daemon has
    :ivar keep_s: after so many seconds what is stored is deleted; a checkpoint
        follows after half of them, whether or not entries come
    """

    def __init__(
        self,
        journal: Journal,
        origin: Callable[[], tuple[str, str, str]],
        health: Health,
    ) -> None:
        self.run = secrets.randbits(62)
        self._journal, self._origin, self._health = journal, origin, health
        self._waiting = collections.deque[recordings.NewBlock]()
        self._bytes = 0
        # Whether blocks may be stored that wait still.
        self._unsure = False
        # Of the newest block, and of the last one that begins a checkpoint.
        self._number = self._checkpoint_at = 0
        self.keep_s = math.inf
        # Of requests, stored once in a stretch.
        self._part_places: recording_format.PartPlaces = {}
        # Whether entries before are missing, so that a checkpoint has to come.
        self._lost = True
        self._began_at, self._checkpoint_bytes, self._since = 0.0, 0, 0
        self._failed_at = -_AGAIN_S
        self._is_stopping = False

    def stop(self) -> None:
        """Have what is gathered next be the end of the run."""
        self._is_stopping = True

    def gather(self) -> None:
        """Make blocks of what the journal has."""
        entries = iter(self._journal.take())
        packer = self._packer()
        try:
            for entry in entries:
                if isinstance(entry, Checkpoint):
                    self._close(packer)
                    self._checkpoint(entry)
                    packer = self._packer()
                elif self._lost:
                    self._drop(1)
                else:
                    packer.add(entry)
                    if len(packer) == _MOST_ENTRIES:
                        self._close(packer)
                        packer = self._packer()
            self._close(packer)
            if self._is_stopping and not self._lost:
                self._append(self._packer().packed(), recordings.ENDS)
                self._lost = True
        except Exception:
            LOG.exception('What a daemon saw could not be recorded')
            self._lost, self._failed_at = True, time.monotonic()
            self._drop(len(packer) + len([entry, *entries]))
        self._ask_for_checkpoint()

    def _packer(self) -> recording_format.Packer:
        number = self._number + 1
        return recording_format.Packer(
            self._origin(), number, self._part_places
        )

    def _checkpoint(self, made: Checkpoint) -> None:
        if self._bytes >= _MOST_WAITING:
            # What follows is of another table.
            self._lost = True
            return
        self._part_places.clear()
        self._checkpoint_at = self._number + 1
        begins = recordings.FOLLOWS if made.follows else recordings.ANEW
        if self._lost:
            begins = recordings.LOST
        before = self._bytes
        for data in recording_format.checkpoint_blocks(
            made.table, self._origin()
        ):
            self._append(data, begins)
            begins = recordings.NO
        self._lost = False
        self._checkpoint_bytes, self._since = self._bytes - before, 0
        self._began_at = time.monotonic()

    def _close(self, packer: recording_format.Packer) -> None:
        """Make a block of entries, if there are any."""
        if not len(packer):
            return
        data = packer.packed()
        if self._bytes + len(data) > _MOST_WAITING:
            self._drop(len(packer))
            self._lost = True
            return
        self._since += len(data)
        self._append(data, recordings.NO)
        for made, index in packer.decided:
            made.place = self.run, self._number, index

    def _drop(self, count: int) -> None:
        self._health.count('history_entries_dropped', by=count)

    def _append(self, data: bytes, begins: int) -> None:
        self._number += 1
        self._bytes += len(data)
        self._waiting.append(recordings.NewBlock(self._number, begins, data))

    def _ask_for_checkpoint(self) -> None:
        largest = max(2 * self._checkpoint_bytes, _LEAST_BYTES)
        now = time.monotonic()
        if self._lost:
            is_due = (
                self._bytes < _MOST_WAITING // 2
                and now - self._failed_at > _AGAIN_S
            )
        else:
            age = now - self._began_at
            is_old = age > _CHECKPOINT_S
            is_due = self._since > (0 if is_old else largest)
            is_due = is_due or age > self.keep_s / 2
        if is_due:
            self._journal.due = True

    def __bool__(self) -> bool:
        """Whether blocks wait."""
        return bool(self._waiting)

    @property
    def fits_transaction(self) -> bool:
        """Whether :meth:`store` stores all that waits."""
        return self._bytes <= _BYTES_PER_TRANSACTION

    def store(self, writer: Writer) -> int:
        """Store the oldest blocks; return how many.

        They are kept until :meth:`stored`.
        """
        some, size = [], 0
        for block in self._waiting:
            some.append(block)
            size += len(block.data)
            if size > _BYTES_PER_TRANSACTION:
                break
        recordings.insert(writer.conn, self.run, some, self._unsure)
        # Where it was deleted, as the database's clock stepped, nothing can be
        # read that follows.
        at = self._checkpoint_at
        is_later = bool(some) and some[-1].number > at
        if is_later and not recordings.is_stored(writer.conn, self.run, at):
            self._journal.due = True
        self._unsure = True
        return len(some)

    def stored(self, count: int) -> None:
        """Let go of the oldest blocks, which are stored."""
        self._unsure = False
        for _ in range(count):
            self._bytes -= len(self._waiting.popleft().data)
