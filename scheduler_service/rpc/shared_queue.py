"""The queue of a topic, which daemons share, and one that cannot work.

A daemon that has lost its database stops consuming from the queue, and holds
what it has of it unacknowledged. Where others consume, it returns that to the
queue, for them. Where there is no other, somebody still has to answer
``ping``: while the queue has no consumer at all, the daemon fetches messages
one by one, answers those, and holds the rest.

Messages must not circle: a quorum queue drops those that come back more often
than its delivery limit allows. So none is returned that nobody else would
take, nor one that came back half as often as that.

Whether others consume is seen at a second queue, to which nothing is sent. A
quorum queue counts messages that were fetched among its own consumers.

Any thread may pause and resume it; everything else belongs to the polling
thread.
"""

from __future__ import annotations

import logging
import time
from typing import Any

LOG = logging.getLogger(__name__)
# Methods that need no database.
_ALWAYS = frozenset(('ping',))
# How often a paused daemon looks whether others consume, in seconds.
_LOOK_S = 0.5
# The delivery limit of a quorum queue that was declared without one: the
# broker's own since RabbitMQ 4.0. A policy may set one, which nobody can see.
_DELIVERY_LIMIT = 20


class SharedQueue:
    """The consumer of one queue, which can be paused.

    :param conn: oslo.messaging's connection that the consumers belong to
    :param name: of the queue
    :param presence: of the queue that daemons consume from while they consume
        from this one
    :param most: how many messages may be held
    :ivar paused: whether nothing is to be consumed
    """

    def __init__(self, conn: Any, name: str, presence: str, most: int) -> None:
        self.paused = False
        self._conn = conn
        self._name = name
        self._presence = presence
        self._most = most
        # (consumer, tag) of oslo.messaging while they are cancelled.
        self._cancelled: list[tuple[Any, int]] = []
        self._held: list[Any] = []
        self._look_at = 0.0

    def delivered(self, message: Any) -> bool:
        """Whether a message that arrived came from this queue."""
        info = message._raw_message.delivery_info or {}
        tag = info.get('consumer_tag')
        # One that was fetched has no consumer's tag.
        return tag is None or tag == self._tag()

    def follow(self) -> list[Any]:
        """Stop or start consuming, as it was asked for.

        :return: messages that were held, and are to be processed now
        """
        self._drop_lost()
        if not self.paused:
            if self._cancelled:
                self._start()
            held, self._held = self._held, []
            return held
        if not self._cancelled:
            self._stop()
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_S
            self._look()
        return []

    def admit(self, messages: list[Any]) -> list[Any]:
        """Return the messages that are to be processed now; hold the rest."""
        admitted = []
        for message in messages:
            if (
                not self.paused
                or not message.shared
                or _method(message) in _ALWAYS
            ):
                admitted.append(message)
            else:
                self.hold(message)
        return admitted

    def hold(self, message: Any) -> None:
        """Keep a message, until it can be processed or returned."""
        self._held.append(message)

    def _consumers(self) -> list[tuple[Any, int]]:
        names = self._name, self._presence
        return self._cancelled or [
            (consumer, tag)
            for consumer, tag in self._conn._consumers.items()
            if consumer.queue_name in names
        ]

    def _own(self) -> tuple[Any, int] | None:
        """Return the consumer of this queue, and its tag."""
        for consumer, tag in self._consumers():
            if consumer.queue_name == self._name:
                return consumer, tag
        return None

    def _tag(self) -> str | None:
        own = self._own()
        return str(own[1]) if own else None

    def _stop(self) -> None:
        """Cancel the consumers; the connection is not to revive them."""
        found = self._consumers()
        if not found or found[0][0].queue_auto_delete:
            # The broker deletes such a queue together with its messages.
            return
        self._cancelled = found
        for consumer, tag in found:
            del self._conn._consumers[consumer]
            self._conn._new_tags.discard(tag)
        try:
            for consumer, tag in found:
                consumer.cancel(tag)
        except Exception as error:
            self._reconnect(error)
        LOG.info('Stopped consuming from %s', self._name)

    def _start(self) -> None:
        for consumer, tag in self._cancelled:
            self._conn._consumers[consumer] = tag
            # The connection consumes for it before it next waits for messages.
            self._conn._new_tags.add(tag)
        self._cancelled = []
        LOG.info('Consuming from %s again', self._name)

    def _look(self) -> None:
        """Fetch messages where nobody consumes, else return held ones."""
        channel = self._conn.channel
        if channel is None or not self._conn.connection.connected:
            return
        try:
            if self._others_consume(channel):
                held, self._held = self._held, []
                for message in held:
                    if self._may_return(message):
                        message.give_back()
                    else:
                        self._held.append(message)
            elif self._cancelled:
                self._fetch(channel)
        except Exception as error:
            self._reconnect(error)

    def _may_return(self, message: Any) -> bool:
        """Whether a message is far from the delivery limit of its queue."""
        config = self._conn.rabbit_quorum_queue_config
        limit = config.delivery_limit or _DELIVERY_LIMIT
        return bool(2 * message.returns < limit)

    def _others_consume(self, channel: Any) -> bool:
        found = channel.queue_declare(self._presence, passive=True)
        own = 0 if self._cancelled else 1
        return bool(found.consumer_count > own)

    def _fetch(self, channel: Any) -> None:
        own = self._own()
        assert own is not None
        for _ in range(self._most - len(self._held)):
            message = channel.basic_get(self._name)
            if message is None:
                return
            own[0]._callback(message)

    def _drop_lost(self) -> None:
        """Forget messages that the broker took back with the connection."""
        kept = []
        for message in self._held:
            if message.is_lost():
                message.listener.settled(None)
            else:
                kept.append(message)
        self._held = kept

    def _reconnect(self, error: Exception) -> None:
        """Have oslo.messaging look after a connection that failed."""
        LOG.info('The queue %s could not be used: %s', self._name, error)
        self._conn._new_tags = set(self._conn._consumers.values())


def _method(message: Any) -> Any:
    body = message.message
    return body.get('method') if isinstance(body, dict) else None
