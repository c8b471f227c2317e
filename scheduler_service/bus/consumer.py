"""Consumes requests from RabbitMQ, and acknowledges them after their work.

A request may be delivered twice; its claim is keyed by the instance, so that
it gets the same reply. One thread owns the connection and everything below
it. Other threads append work for it, and wake it if it waits.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import logging
import math
import os
import random
import select
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from amqp.exceptions import (
    AccessRefused,
    ConsumerCancelled,
    NotAllowed,
    PreconditionFailed,
)

from scheduler_service import errors, worker
from scheduler_service.bus import options as bus_options
from scheduler_service.bus import wire
from scheduler_service.bus.connection import Connection, Dialler
from scheduler_service.bus.options import RabbitOptions, error_text
from scheduler_service.bus.replies import Publisher, Timers
from scheduler_service.bus.wire import Consumer, Publication, Request
from scheduler_service.engine.health import Health

LOG = logging.getLogger(__name__)
# How long an acknowledgement may wait for others, in seconds, and how many may
# wait.
_ACKNOWLEDGE_S = 0.01
_MOST_WAITING = 32
# How often a paused daemon checks whether others consume, in seconds.
_LOOK_S = 0.5
# The delivery limit of a quorum queue that was declared without any: the
# broker's default since RabbitMQ 4.0. A limit by a policy is invisible here.
_DELIVERY_LIMIT = 20
# A first connection that takes longer counts as an unreachable broker.
_CONNECT_S = 2.0
# Requests that have their reply, and are remembered.
_MOST_ANSWERED = 4096
# The thread wakes up at least once in this time.
_LONGEST_WAIT_S = 60.0
_Work = tuple[Callable[..., None], tuple[Any, ...]]


class RabbitConsumer(Consumer):
    """Consumes the requests of a server.

    :param target: exchange, topic and name of the server; with ``fanout`` it
        also gets casts to every server of the topic
    :param take: called with each request, on the consumer's thread
    """

    def __init__(
        self,
        options: RabbitOptions,
        target: Any,
        take: Callable[[Request], None],
        health: Health,
    ) -> None:
        super().__init__(options.exchange)
        self._options = options
        self._topic = target.topic
        self._sources = options.sources(target)
        self._take = take
        self._dialler = Dialler(options)
        self._timers = Timers()
        self._publisher = Publisher(
            health,
            self._timers,
            options.topic_exchange,
            options.kombu_missing_consumer_retry_timeout,
        )
        self._inbox: collections.deque[_Work] = collections.deque()
        # Set while the thread waits: it has to be woken.
        self._waiting = False
        self._wake = os.eventfd(0)
        weakref.finalize(self, os.close, self._wake)
        self._poll = self._new_poll()
        # Monotonic time at which no message was there that is unread by now.
        self._all_read_at = math.inf
        self._connection: Connection | None = None
        self._channel: Any = None
        # The number of the present connection, or of the next.
        self._number = 0
        # Monotonic time until which a first connection is not late.
        self._late_at = math.inf
        self._ready = threading.Event()
        self._refusal: errors.ConfigurationError | None = None
        self._ended = False
        # Tag -> whether it may be acknowledged; in order.
        self._unacknowledged: dict[int, bool] = {}
        self._settled = 0
        self._acknowledge_at = math.inf
        # Whether acknowledgements must not wait, since refusals follow them.
        self._refusing = False
        # Consumer tags of the queues that are consumed from.
        self._tags: dict[str, str] = {}
        self._numbers = itertools.count()
        self._offset: Any = 'last'
        self._in_work: dict[Any, Request] = {}
        self._answered: collections.OrderedDict[Any, None] = (
            collections.OrderedDict()
        )
        self._stopping = self._paused = False
        self._held: list[Request] = []
        self._look_at = self._beat_at = math.inf
        self._thread = worker.new_thread(
            'bus', self._run, health.vital_thread_ended
        )

    # Any thread:

    def start(self) -> None:
        """Consume; wait for a connection.

        :raises ConfigurationError: the broker refuses the login, or a queue
            or an exchange is of another kind
        """
        self._late_at = time.monotonic() + _CONNECT_S
        self._thread.start()
        self._ready.wait()
        if self._refusal is not None:
            raise self._refusal

    def call(self, work: Callable[..., None], *args: Any) -> None:
        self._inbox.append((work, args))
        if self._waiting:
            self._waiting = False
            os.eventfd_write(self._wake, 1)

    def pause(self) -> None:
        self._paused = True
        self.call(_noop)

    def resume(self) -> None:
        self._paused = False
        self.call(_noop)

    def is_connected(self) -> bool:
        """Whether it has a connection, or its first one is not late."""
        has_one = self._connection is not None
        return has_one or time.monotonic() < self._late_at

    def fault(self) -> str:
        if self.is_connected():
            return ''
        return self._dialler.fault or self._dialler.addresses()

    def stop_consuming(self) -> None:
        self._stopping = True
        self._ready.set()
        self._wait_for(self._cancel)
        # Messages that arrived before the cancellation are handed over.
        self._wait_for(_noop)

    def close(self) -> None:
        """Delete the server's own queues, and close the connection."""
        self._wait_for(self._end)
        if self._thread.ident:
            self._thread.join()

    def _wait_for(self, work: Callable[[], None]) -> None:
        """Run work on the thread; return when it is done."""
        done = threading.Event()
        self.call(work)
        self.call(done.set)
        while self._thread.is_alive() and not done.wait(0.05):
            pass

    def is_lost(self, request: Request) -> bool:
        return request.connection != self._number

    def is_unwanted(self, request: Request) -> bool:
        return self._paused and request.shared

    def stuck(self) -> int:
        return self._publisher.stuck()

    def in_lines(self) -> int:
        return self._publisher.in_lines

    # The consumer's thread:

    def publish(self, publication: Publication) -> None:
        self._publisher.put(publication)

    def acknowledge(self, request: Request) -> None:
        self._forget(request)
        key = _key(request)
        if key is not None:
            self._answered[key] = None
            if len(self._answered) > _MOST_ANSWERED:
                self._answered.popitem(last=False)
        for tag in self._tags_of(request):
            self._may_acknowledge(tag)

    def refuse(self, request: Request, publication: Publication) -> None:
        self._forget(request)
        tags = self._tags_of(request)
        if not tags:
            # The broker gives it to some daemon, which replies.
            publication.done(False)
            return
        for tag in tags:
            self._may_acknowledge(tag)
        self._refusing = publication.refuses = True
        self._publisher.put(publication)

    def hold(self, request: Request) -> None:
        if self._tags_of(request):
            self._held.append(request)
        else:
            # The broker has given it to some daemon.
            self._forget(request)

    def _tags_of(self, request: Request) -> list[int]:
        number, tags = request.tags
        current: list[int] = tags if number == self._number else []
        return current

    def _forget(self, request: Request) -> None:
        key = _key(request)
        if self._in_work.get(key) is request:
            del self._in_work[key]

    def _may_acknowledge(self, tag: int) -> None:
        if not self._settled:
            self._acknowledge_at = time.monotonic() + _ACKNOWLEDGE_S
        self._settled += 1
        self._unacknowledged[tag] = True

    def _new_poll(self) -> select.poll:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        return poll

    def _run(self) -> None:
        rounds = 0
        while not self._ended:
            try:
                if self._connection is None:
                    self._connect()
                    if self._connection is None:
                        self._work_offline(self._dialler.wait_s(rounds))
                        rounds += 1
                else:
                    rounds = 0
                    self._turn()
            except Exception as fault:
                self._lose(fault)
        self._waiting = False

    def _connect(self) -> None:
        """Try each node once, until there is a connection."""
        for _ in range(self._dialler.count):
            self._work_off()
            if self._ended:
                return
            try:
                self._open(self._dialler.dial())
            except (AccessRefused, NotAllowed, PreconditionFailed) as refusal:
                # It ends the start; later it is a fault like any other.
                if not self._ready.is_set():
                    self._refusal = bus_options.refused(refusal)
                    self._ended = True
                    self._ready.set()
            except Exception:
                # The dialler keeps the reason.
                LOG.debug('No connection', exc_info=True)
            else:
                self._late_at = -math.inf
                self._ready.set()
                return

    def _open(self, connection: Connection) -> None:
        try:
            for source in self._sources:
                connection.declare(source.queue, source.keys)
            channel = connection.channel()
            channel.basic_qos(
                0, self._options.rabbit_qos_prefetch_count, False
            )
            self._channel, self._tags = channel, {}
            self._publisher.open(connection, channel)
            if not self._stopping:
                for source in self._sources:
                    if not (self._paused and source.shared):
                        self._consume(source)
        except Exception as fault:
            # Messages may have arrived already.
            self._connection = connection
            self._lose(fault)
            raise
        self._connection = connection
        self._poll.register(connection, select.POLLIN)
        self._look_at = time.monotonic()
        self._beat_at = self._look_at + connection.heartbeat_s
        # The first turn waits for nothing: it publishes what waited.
        self._inbox.append((_noop, ()))

    def _consume(self, source: bus_options.Source) -> None:
        name = source.queue.name
        arguments = dict(source.arguments)
        if source.stream:
            arguments['x-stream-offset'] = self._offset
        tag = str(next(self._numbers))
        self._channel.basic_consume(
            name,
            tag,
            callback=functools.partial(self._on_message, name == self._topic),
            arguments=arguments or None,
        )
        self._tags[name] = tag

    def _lose(self, fault: Exception) -> None:
        """Drop the connection; what was not acknowledged comes again."""
        connection, self._connection = self._connection, None
        self._poll = self._new_poll()
        self._channel = None
        self._number += 1
        self._unacknowledged.clear()
        self._settled = 0
        self._refusing = False
        self._acknowledge_at = self._beat_at = math.inf
        self._publisher.lose()
        # The broker gives them to any daemon.
        held, self._held = self._held, []
        for request in held:
            self._forget(request)
        if connection is None:
            LOG.error(
                'Work on the thread of the message bus failed', exc_info=fault
            )
            self._work_offline(self._dialler.wait_s(0))
            return
        self._dialler.note(connection.host, fault)
        with contextlib.suppress(Exception):
            connection.drop()
        if isinstance(fault, ConsumerCancelled):
            self._offset = 'last'
            splay = random.uniform(0, self._options.kombu_reconnect_splay)  # noqa: S311
            self._work_offline(self._options.kombu_reconnect_delay + splay)

    def _work_offline(self, seconds: float) -> None:
        """Do work of other threads while there is no connection."""
        end = time.monotonic() + seconds
        while not self._ended and (left := end - time.monotonic()) > 0:
            self._await(None, left)
            self._work_off()
            self._timers.run_due(time.monotonic())

    def _turn(self) -> None:
        """Wait for messages and work, and do what there is to do.

        :raises Exception: the connection is lost
        """
        connection = self._connection
        assert connection is not None
        due = min(
            self._acknowledge_at,
            self._beat_at,
            self._look_at if self._paused and not self._stopping else math.inf,
            self._timers.next_due(),
        )
        if self._await(connection, due - time.monotonic()):
            try:
                connection.read()
            except Exception as fault:
                if not self._publisher.close_casts(fault):
                    raise
        self._work_off()
        if self._connection is None:
            return
        if self._paused and not self._stopping:
            self._keep_paused(connection)
        elif not self._stopping:
            self._keep_consuming(connection)
        now = time.monotonic()
        self._timers.run_due(now)
        if now >= self._beat_at:
            self._beat_at = now + connection.heartbeat_s
            connection.beat()
        if self._settled:
            if connection.blocked:
                self._acknowledge_at = now + _LOOK_S
            else:
                self._flush_acknowledgements(now)
        self._publisher.flush()

    def _await(self, connection: Connection | None, seconds: float) -> bool:
        """Wait for a message or work.

        :return: whether something arrived over the connection
        """
        buffered = connection is not None and connection.buffered() > 0
        self._waiting = True
        if self._inbox or buffered:
            seconds = 0.0
        wait_s = min(max(seconds, 0.0), _LONGEST_WAIT_S)
        now = time.monotonic()
        ready = dict(self._poll.poll(0))
        if not (buffered or ready.keys() - {self._wake}):
            self._all_read_at = now
        if wait_s and not ready:
            ready = dict(self._poll.poll(math.ceil(1000 * wait_s)))
        self._waiting = False
        if ready.pop(self._wake, None):
            os.eventfd_read(self._wake)
        return bool(ready) or buffered

    def _work_off(self) -> None:
        for _ in range(len(self._inbox)):
            work, args = self._inbox.popleft()
            try:
                work(*args)
            except Exception:
                LOG.exception('Work on the thread of the message bus failed')

    def _on_message(self, shared: bool, message: Any) -> None:
        """Keep a message that arrived until it is its turn."""
        tag = message.delivery_info['delivery_tag']
        self._unacknowledged[tag] = False
        came_after = self._all_read_at
        self._inbox.append(
            (self._accept, (self._number, tag, shared, message, came_after))
        )

    def _accept(
        self,
        number: int,
        tag: int,
        shared: bool,
        message: Any,
        came_after: float,
    ) -> None:
        """Hand a message to the server, unless it was handed over before.

        :param number: of the connection
        :param came_after: as of :class:`Request`
        """
        if number != self._number:
            return
        properties = message.properties
        headers = properties.get('application_headers') or {}
        if 'x-stream-offset' in headers:
            self._offset = headers['x-stream-offset'] + 1
        try:
            content = wire.read(message.body, properties)
            request = wire.request(
                self,
                content,
                properties,
                bool(message.delivery_info.get('redelivered')),
            )
        except Exception as fault:
            LOG.warning('Dropped a message that cannot be read: %s', fault)
            del self._unacknowledged[tag]
            self._channel.basic_reject(tag, requeue=False)
            return
        key = _key(request)
        if key is not None and key in self._answered:
            LOG.info('Dropped a redelivered request that has its reply')
            self._may_acknowledge(tag)
            return
        earlier = self._in_work.get(key)
        if earlier is not None:
            # In work here: only its acknowledgement has a new tag.
            earlier.tags = self._number, [*self._tags_of(earlier), tag]
            return
        request.shared = shared
        request.came_after = came_after
        request.connection = self._number
        request.tags = self._number, [tag]
        if key is not None:
            self._in_work[key] = request
        self._publisher.watch(request)
        self._hand_over(request)

    def _hand_over(self, request: Request) -> None:
        """Let the server process a request, or hold it during a pause."""
        if self.is_unwanted(request) and (
            request.method not in wire.WITHOUT_DATABASE
        ):
            self.hold(request)
        else:
            self._take(request)

    def _flush_acknowledgements(self, now: float) -> None:
        """Acknowledge settled messages if enough wait, or for long enough."""
        prefetch = self._options.rabbit_qos_prefetch_count or math.inf
        most = min(_MOST_WAITING, prefetch / 4)
        waits = self._settled < most and now < self._acknowledge_at
        if waits and not self._refusing:
            return
        self._refusing = False
        self._acknowledge_at = math.inf
        self._settled = 0
        tags = self._unacknowledged
        first = list(itertools.takewhile(tags.__getitem__, tags))
        if first:
            self._channel.basic_ack(first[-1], multiple=True)
        for tag in first:
            del tags[tag]
        for tag in [tag for tag, settled in tags.items() if settled]:
            self._channel.basic_ack(tag)
            del tags[tag]

    # Pausing:

    def _keep_consuming(self, connection: Connection) -> None:
        """Consume from the shared queue, after a pause."""
        if self._topic not in self._tags and not connection.blocked:
            for source in self._sources:
                if source.shared:
                    self._consume(source)
            LOG.info('Consuming from %s again', self._topic)
        held, self._held = self._held, []
        for request in held:
            request.settled = False
            self._hand_over(request)

    def _keep_paused(self, connection: Connection) -> None:
        """Consume nothing from the shared queue."""
        now = time.monotonic()
        if connection.blocked:
            self._look_at = now + _LOOK_S
            return
        # The broker would delete such a queue with its messages.
        if self._topic in self._tags and not self._options.amqp_auto_delete:
            for source in self._sources:
                if source.shared:
                    tag = self._tags.pop(source.queue.name)
                    self._channel.basic_cancel(tag)
            LOG.info('Stopped consuming from %s', self._topic)
            self._look_at = now
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            self._fetch_or_return()

    def _fetch_or_return(self) -> None:
        """Fetch messages if no daemon consumes, else return held ones."""
        declared = self._channel.queue_declare(
            bus_options.presence_queue(self._topic), passive=True
        )
        own = 1 if self._topic in self._tags else 0
        if declared.consumer_count > own:
            limit = self._options.rabbit_quorum_delivery_limit
            held, self._held = self._held, []
            for request in held:
                # Not where the delivery limit of the queue is near.
                if 2 * request.returns >= (limit or _DELIVERY_LIMIT):
                    self._held.append(request)
                    continue
                request.settled = True
                self._forget(request)
                for tag in self._tags_of(request):
                    del self._unacknowledged[tag]
                    self._channel.basic_reject(tag, requeue=True)
        elif not own:
            most = self._options.rabbit_qos_prefetch_count or _MOST_ANSWERED
            for _ in range(most - len(self._held)):
                message = self._channel.basic_get(self._topic)
                if message is None:
                    return
                self._on_message(True, message)

    # Stopping:

    def _cancel(self) -> None:
        """Consume nothing more; what has arrived is processed."""
        if self._channel is None:
            return
        tags, self._tags = self._tags, {}
        try:
            for tag in tags.values():
                self._channel.basic_cancel(tag)
        except Exception as fault:
            self._lose(fault)

    def _end(self) -> None:
        """Acknowledge, delete the server's own queues, and disconnect."""
        self._ended = True
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            if self._settled:
                self._flush_acknowledgements(math.inf)
            self._publisher.flush()
            for source in self._sources:
                if not (source.shared or source.stream):
                    self._channel.queue_delete(source.queue.name)
            connection.close()
        except Exception as fault:
            LOG.info('The connection was not closed: %s', error_text(fault))
            with contextlib.suppress(Exception):
                connection.drop()


def _noop() -> None:
    """Wake the thread, which then checks what changed."""


def _key(request: Request) -> Any:
    """Return a key that a message and its redeliveries have; or None."""
    unique_id = request.unique_id
    if not (unique_id and isinstance(unique_id, str)):
        return None
    return unique_id, request.msg_id
