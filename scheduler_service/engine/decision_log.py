"""Writes a line at INFO for each decision, off the engine's thread.

Owns the queue of decisions and the thread that words them. Whichever thread
sets a result adds it to the queue, which is a deque and needs no lock. A
message with many requests gets one line.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgspec
from oslo_context import context

from scheduler_service import errors
from scheduler_service.engine.delivered_message import DeliveredMessage
from scheduler_service.engine.futures import BatchItem, RequestReturned
from scheduler_service.engine.jobs import (
    HostJob,
    Job,
    ZoneJob,
)
from scheduler_service.model import HostsAnswer, PoolAnswer

LOG = logging.getLogger(__name__)
_INTERVAL_S = 0.1
# Decisions of which the line is not written yet. Beyond it the oldest go.
_MAX_WAITING = 20_000
_HOSTS_NAMED = 5
_CONTEXT = ('user_id', 'project_id', 'domain_id', 'global_request_id')
# So much of a text of a caller's is written.
_MAX_LENGTH = 255


class _Asked(msgspec.Struct):
    """What was asked for, as far as the line tells.

    :ivar kind: the method
    :ivar is_trial: whether nothing is claimed or stored
    :ivar queued_at: monotonic time
    """

    kind: str
    request_id: str | None
    project_id: str | None
    message: DeliveredMessage
    is_trial: bool = False
    queued_at: float = msgspec.field(default_factory=time.monotonic)


class DecisionLog:
    """A thread that writes lines.

    :ivar enabled: whether there are lines
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._waiting: collections.deque[tuple[_Asked, Future[Any], float]]
        self._waiting = collections.deque(maxlen=_MAX_WAITING)
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name='decision-log', daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def follow(self, job: Job) -> None:
        """Write a line when a job of its own has its result."""
        if not self.enabled or not LOG.isEnabledFor(logging.INFO):
            return
        if isinstance(job, HostJob):
            asked = _Asked(
                'select_destinations',
                job.request.request_id,
                job.request.project_id,
                job.message,
                not job.claim,
            )
        elif isinstance(job, ZoneJob):
            asked = _Asked(
                'schedule_zone',
                job.zone.request_id,
                job.zone.project_id,
                job.message,
                not job.keep,
            )
        else:
            return
        assert isinstance(job.future, Future)
        self._add(job.future, asked)

    def follow_many(
        self,
        future: Future[list[BatchItem]],
        message: DeliveredMessage,
        project_id: str | None,
    ) -> None:
        """Write a line when all requests of a message have their results.

        :param project_id: of the caller
        """
        if not self.enabled or not LOG.isEnabledFor(logging.INFO):
            return
        self._add(
            future,
            _Asked('schedule_many', message.sent_id(), project_id, message),
        )

    def _add(self, future: Future[Any], asked: _Asked) -> None:
        # The callback does not know the job: that would be a reference cycle.
        future.add_done_callback(partial(self._decided, asked))

    def _decided(self, asked: _Asked, future: Future[Any]) -> None:
        self._waiting.append((asked, future, time.monotonic()))

    def stop(self, timeout: float) -> None:
        """Write what waits and end the thread.

        :param timeout: seconds to wait for it
        """
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.wait(_INTERVAL_S):
            self.flush()
        self.flush()

    def flush(self) -> None:
        """Write what waits, in the caller's thread."""
        while self._waiting:
            asked, future, decided_at = self._waiting.popleft()
            try:
                _write(asked, future, decided_at)
            except Exception:
                LOG.exception('The line of a decision could not be written')


def _write(asked: _Asked, future: Future[Any], decided_at: float) -> None:
    if future.cancelled():
        return
    fault = future.exception()
    if isinstance(fault, RequestReturned):
        # Another daemon decides.
        return
    outcome = _outcome(fault, None if fault else future.result())
    trial = ', nothing claimed' if asked.is_trial else ''
    record = LOG.makeRecord(
        LOG.name,
        logging.INFO,
        __file__,
        0,
        '%s: %s%s; %.1f ms, request %s, project %s',
        (
            asked.kind,
            outcome,
            trial,
            (decided_at - asked.queued_at) * 1000,
            _printable(asked.request_id) or '-',
            _printable(asked.project_id) or '-',
        ),
        None,
        extra={'context': _context(asked)},
    )
    # The line was late, the decision was not.
    record.created -= time.monotonic() - decided_at
    record.msecs = record.created % 1 * 1000
    LOG.handle(record)


def _outcome(fault: BaseException | None, result: Any) -> str:
    """Return the outcome in a few words, with the hosts or the pool."""
    if fault is not None:
        return errors.as_scheduler_error(fault).name
    if isinstance(result, HostsAnswer):
        hosts = [one.selected.host for one in result.placements]
        return f'chosen {_named(hosts)}'
    if isinstance(result, PoolAnswer):
        return f'chosen pool {result.pool_name or result.pool_id}'
    counts = Counter(_word(item) for item in result)
    listed = ', '.join(f'{n} {word}' for word, n in counts.most_common())
    return f'{len(result)} requests' + (f', {listed}' if listed else '')


def _word(item: BatchItem) -> str:
    fault = item.exception()
    if fault is None:
        return 'chosen'
    return errors.as_scheduler_error(fault).name


def _named(hosts: Iterable[str]) -> str:
    """Return the names of hosts, each with its instances; the first few."""
    counts = Counter(hosts)
    named = [
        host if count == 1 else f'{host} x {count}'
        for host, count in list(counts.items())[:_HOSTS_NAMED]
    ]
    more = len(counts) - len(named)
    if more:
        named.append(f'{more} more')
    return f'host{"s" if len(counts) > 1 else ""} {", ".join(named)}'


def _context(asked: _Asked) -> context.RequestContext:
    """Return the caller's context, for what formats the line."""
    sent = asked.message.context
    values = {name: _printable(sent.get(name)) for name in _CONTEXT}
    values['project_id'] = values['project_id'] or _printable(asked.project_id)
    return context.RequestContext(
        **values,
        request_id=asked.message.sent_id() or _printable(asked.request_id),
        overwrite=False,
    )


def _printable(text: Any) -> str | None:
    """Return a caller's text, which must not look like a line of ours."""
    if not text or not isinstance(text, str):
        return None
    return (text if text.isprintable() else ascii(text))[:_MAX_LENGTH]
