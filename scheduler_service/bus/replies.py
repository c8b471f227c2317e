"""Publishes replies and casts without waiting, and collects confirmations.

All belongs to the consumer's thread. Publications whose queue is missing or
full wait in the line of their destination, and are tried again one at a time,
ever more rarely. Other destinations are not delayed.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import heapq
import itertools
import logging
import math
import time
import weakref
from collections.abc import Callable
from typing import Any

import kombu
from amqp import spec
from amqp.basic_message import Message
from amqp.exceptions import ChannelError, PreconditionFailed

from scheduler_service.bus import wire
from scheduler_service.bus.connection import Connection
from scheduler_service.bus.wire import Publication, Request
from scheduler_service.engine.health import Health
from scheduler_service.engine.messages import is_late

LOG = logging.getLogger(__name__)
# The first and the longest delay before a destination that refused is tried
# again, in seconds; the delay doubles.
_RETRY_S = 0.25
_MAX_RETRY_S = 2.0
# Destinations that are tried again in a second, in all.
_MAX_RETRIES_A_SECOND = 200
# Publications that may wait for a destination; further ones are dropped.
_MAX_LINE = 100
_FULL_LINE = f'{_MAX_LINE} replies wait for it already'
# Publications in lines that may keep their messages unacknowledged: these
# count against the prefetch of the daemon.
_MAX_UNACKNOWLEDGED = 16
# A broker that confirms nothing for longer accepts no replies, in seconds.
STUCK_S = 2.0
# The shortest and the longest interval between heartbeats, in seconds.
_SHORTEST_S = 0.5
_LONGEST_S = 3600.0
# The default exchange, as errors of the broker name it.
_DEFAULT_EXCHANGE = "'amq.default'"


class _ConfirmChannel:
    """A channel whose messages the broker confirms.

    :param settle: called with a publication, and whether its queue has it
    :ivar unconfirmed: by number, in order
    """

    def __init__(
        self, channel: Any, settle: Callable[[Publication, bool], None]
    ) -> None:
        self.channel = channel
        self.unconfirmed: dict[int, Publication] = {}
        self._settle = settle
        self._number = 0
        channel.confirm_select()
        for event, accepted in (('basic_ack', True), ('basic_nack', False)):
            channel.events[event].add(
                functools.partial(self._on_confirmed, accepted)
            )
        channel.events['basic_return'].add(self._on_return)

    def publish(self, publication: Publication) -> None:
        """Publish, without waiting for the confirmation."""
        self._number += 1
        self.unconfirmed[self._number] = publication
        publication.returned = False
        publication.published = time.monotonic()
        message = Message(
            publication.body,
            delivery_mode=2,
            message_id=str(self._number),
            **wire.PROPERTIES,
        )
        mandatory = not publication.exchange
        key = publication.key or publication.destination
        # Unlike basic_publish this does not read from the socket first.
        self.channel.send_method(
            spec.Basic.Publish,
            'Bssbb',
            (0, publication.exchange, key, mandatory, False),
            message,
        )

    def _on_return(
        self, error: Any, exchange: str, key: str, message: Any
    ) -> None:
        """Note that a publication has no queue; its confirmation follows."""
        number = int(message.properties['message_id'])
        self.unconfirmed[number].returned = True

    def _on_confirmed(
        self, accepted: bool, number: int, multiple: bool
    ) -> None:
        numbers = [number]
        if multiple:
            numbers = list(
                itertools.takewhile(number.__ge__, self.unconfirmed)
            )
        for each in numbers:
            publication = self.unconfirmed.pop(each)
            self._settle(publication, accepted and not publication.returned)


class Timers:
    """Work that is due at some time."""

    def __init__(self) -> None:
        # (monotonic time, order, work), a heap.
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()

    def at(self, due: float, work: Callable[[float], None]) -> None:
        """Call *work* with the time then.

        :param due: monotonic
        """
        heapq.heappush(self._due, (due, next(self._numbers), work))

    def next_due(self) -> float:
        """Return the earliest monotonic time; infinite: there is none."""
        return self._due[0][0] if self._due else math.inf

    def run_due(self, now: float) -> None:
        """Do the work that is due."""
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2](now)


@dataclasses.dataclass(slots=True, eq=False)
class _Line:
    """Publications for a destination that refuses them at the moment.

    :ivar trying: the publication that was published again; None: the next
        attempt is scheduled
    :ivar delay: seconds until the next attempt
    """

    destination: str
    delay: float = _RETRY_S / 2
    trying: Publication | None = None
    waiting: collections.deque[Publication] = dataclasses.field(
        default_factory=collections.deque
    )


class Publisher:
    """Publishes on a connection, and again on the next one if it is lost.

    :param exchange: makes an exchange for casts, from its name
    :param give_up_s: for how long a refused publication is repeated
    :ivar in_lines: number of publications that wait in lines
    """

    def __init__(
        self,
        health: Health,
        timers: Timers,
        exchange: Callable[[str], kombu.Exchange],
        give_up_s: float,
    ) -> None:
        self.in_lines = 0
        self._health = health
        self._timers = timers
        self._exchange = exchange
        self._give_up_s = give_up_s
        self._outgoing: collections.deque[Publication] = collections.deque()
        self._lines: dict[str, _Line] = {}
        self._connection: Connection | None = None
        # Monotonic time from which the broker can confirm something.
        self._opened_at = math.inf
        self._replies: _ConfirmChannel | None = None
        self._casts: _ConfirmChannel | None = None
        self._exchanges: set[str] = set()

    def open(self, connection: Connection, channel: Any) -> None:
        """Publish over a new connection.

        :param channel: for replies
        """
        self._connection = connection
        self._opened_at = time.monotonic()
        self._replies = _ConfirmChannel(channel, self._settle)
        self._exchanges.clear()

    def lose(self) -> None:
        """Keep what the lost connection did not confirm for the next one."""
        self._connection = None
        self._opened_at = math.inf
        kept: list[Publication] = []
        for used in (self._replies, self._casts):
            if used is not None:
                kept += (
                    each for each in used.unconfirmed.values() if each.repeated
                )
        self._casts = self._replies = None
        kept += self._outgoing
        # The broker may deliver a refused request again, to any daemon, which
        # then replies.
        self._outgoing = collections.deque(
            each for each in kept if not each.refuses
        )
        for publication in kept:
            if publication.refuses:
                publication.done(False)

    def put(self, publication: Publication) -> None:
        """Publish with the next flush, or when its destination accepts."""
        publication.expires = time.monotonic() + self._give_up_s
        # A publication is stuck from now on, not from when it is written.
        publication.published = time.monotonic()
        line = self._lines.get(publication.destination)
        if not publication.repeated and (line or self._waits()):
            publication.done(False)
        elif line is None:
            self._outgoing.append(publication)
        else:
            self._append(line, publication)

    def _waits(self) -> bool:
        """Whether nothing can be written at the moment."""
        return self._connection is None or self._connection.blocked

    def flush(self) -> None:
        """Write what waits, unless the broker takes nothing.

        :raises Exception: the connection is lost
        """
        while self._outgoing and not self._waits():
            publication = self._outgoing[0]
            try:
                used = self._channel_for(publication)
            except ChannelError as fault:
                self._exchanges.discard(publication.exchange)
                LOG.warning(
                    'Exchange %s cannot be used: %s',
                    publication.exchange,
                    fault,
                )
                self._refuse(self._outgoing.popleft())
            else:
                used.publish(self._outgoing.popleft())

    def _channel_for(self, publication: Publication) -> _ConfirmChannel:
        """Return the channel of a publication; its exchange is declared.

        An error of an exchange closes its channel, and replies go on.
        """
        assert self._connection is not None
        assert self._replies is not None
        if not publication.exchange:
            return self._replies
        if publication.exchange not in self._exchanges:
            self._declare(publication.exchange)
        if self._casts is None:
            self._casts = _ConfirmChannel(
                self._connection.channel(), self._settle
            )
        return self._casts

    def _declare(self, name: str) -> None:
        assert self._connection is not None
        exchange = self._exchange(name)
        try:
            self._connection.declare_alone(exchange)
        except PreconditionFailed as refusal:
            # An exchange of another kind is used as it is.
            LOG.info('Exchange %s is used as it is: %s', name, refusal)
        self._exchanges.add(name)

    def close_casts(self, fault: BaseException) -> bool:
        """Whether a channel's error is that of casts: they are tried again.

        :raises Exception: the connection is lost
        """
        used = self._casts
        if used is None or not used.unconfirmed:
            return False
        if not isinstance(fault, ChannelError):
            return False
        if _DEFAULT_EXCHANGE in str(fault):
            return False
        LOG.warning('Casts were refused: %s', fault)
        self._casts = None
        self._exchanges.clear()
        for publication in used.unconfirmed.values():
            self._refuse(publication)
        used.channel.close()
        return True

    def _settle(self, publication: Publication, accepted: bool) -> None:
        publication.refuses = False
        if not accepted:
            self._refuse(publication)
            return
        if publication.repeated:
            # Heartbeats and casts among daemons are not timed.
            seconds = time.monotonic() - publication.published
            self._health.time('reply', seconds)
        line = self._lines.get(publication.destination)
        if line is not None and line.trying is publication:
            line.trying = None
            line.delay = _RETRY_S / 2
            self._schedule(line, 0.0)
        publication.done(True)

    def _refuse(self, publication: Publication) -> None:
        """Put a publication into the line of its destination."""
        if not publication.repeated:
            publication.done(False)
            return
        line = self._lines.get(publication.destination)
        if line is not None and line.trying is not publication:
            self._append(line, publication)
            return
        if line is None:
            line = _Line(publication.destination)
            self._lines[publication.destination] = line
        line.trying = None
        line.waiting.appendleft(publication)
        self.in_lines += 1
        line.delay = max(
            min(2 * line.delay, _MAX_RETRY_S),
            len(self._lines) / _MAX_RETRIES_A_SECOND,
        )
        self._release(publication)
        self._drop_expired(line)
        self._schedule(line, line.delay)

    def _append(self, line: _Line, publication: Publication) -> None:
        """Append a publication to a line, or drop it from a full one."""
        if len(line.waiting) >= _MAX_LINE:
            self._drop(publication, _FULL_LINE)
            return
        line.waiting.append(publication)
        self.in_lines += 1
        self._release(publication)

    def _release(self, publication: Publication) -> None:
        """Release a publication that waits with many others."""
        if self.in_lines > _MAX_UNACKNOWLEDGED and publication.release:
            publication.release()

    def _drop_expired(self, line: _Line) -> None:
        now = time.monotonic()
        while line.waiting and line.waiting[0].expires <= now:
            self.in_lines -= 1
            self._drop(
                line.waiting.popleft(),
                f'it was missing or full for {self._give_up_s:.0f} s',
            )

    def _drop(self, publication: Publication, why: str) -> None:
        LOG.warning(
            'Dropped a reply to queue %s, %s', publication.destination, why
        )
        publication.done(False)

    def _schedule(self, line: _Line, delay: float) -> None:
        """Try a line again after some seconds; remove an empty line."""
        if line.waiting:
            due = time.monotonic() + delay
            self._timers.at(due, functools.partial(self._try, line))
        else:
            del self._lines[line.destination]

    def _try(self, line: _Line, now: float) -> None:
        line.trying = line.waiting.popleft()
        self.in_lines -= 1
        self._outgoing.append(line.trying)

    def stuck(self) -> int:
        """Return how many replies wait, if none is confirmed; else 0.

        It is 0 while there is no connection. Any thread may call this.
        """
        waiting = list(self._outgoing)
        for used in (self._replies, self._casts):
            if used is not None:
                waiting += list(used.unconfirmed.values())
        oldest = min((each.published for each in waiting), default=math.inf)
        since = max(oldest, self._opened_at)
        is_stuck = time.monotonic() - since > STUCK_S
        return len(waiting) + self.in_lines if is_stuck else 0

    # Heartbeats to callers that wait for a reply:

    def watch(self, request: Request) -> None:
        """Send heartbeats for a request, if its caller expects them.

        A call may have a heartbeat timeout, shorter than its whole timeout.
        Its caller gets a heartbeat after every half of that time, until the
        reply is sent or the deadline has passed. A caller without the timeout
        must get none: its client fails then. Only a weak reference to the
        request is kept.
        """
        timeout = request.timeout
        if isinstance(timeout, int | float) and timeout > 0:
            interval = max(_SHORTEST_S, min(timeout, 2 * _LONGEST_S) / 2)
            self._beat_at(time.monotonic(), interval, weakref.ref(request))

    def _beat_at(
        self, now: float, interval: float, reference: weakref.ref[Request]
    ) -> None:
        beat = functools.partial(self._beat, interval, reference)
        self._timers.at(now + interval, beat)

    def _beat(
        self, interval: float, reference: weakref.ref[Request], now: float
    ) -> None:
        request = reference()
        if request is None or request.settled or is_late(request.deadline):
            return
        if request.reply_q is not None:
            body = wire.reply(request.msg_id, None, ending=False)
            self.put(
                Publication(
                    request.reply_q, body, self._count_beat, repeated=False
                )
            )
            self._beat_at(now, interval, reference)

    def _count_beat(self, sent: bool) -> None:
        outcome = 'sent' if sent else 'failed'
        self._health.count('call_heartbeats', outcome)
