"""A request from RabbitMQ, which stays unacknowledged until its work is done.

The polling thread makes it and acknowledges it; any thread may reply.
"""

from __future__ import annotations

import logging
import time
import uuid
from typing import Any

import msgspec
from oslo_messaging._drivers import amqp, amqpdriver, common

from scheduler_service.rpc import queues

LOG = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class LateAckMessage(amqpdriver.AMQPIncomingMessage):  # type: ignore[misc]
    """A request that is acknowledged when its work is done.

    :ivar redelivered: whether the broker delivered it before, to any daemon
    :ivar shared: whether it came from the queue that daemons share
    :ivar returns: how often it was returned to its queue, or its connection
        was lost; quorum queues alone count that
    :ivar deadline: monotonic time at which the caller gives up, by the
        expiration of the message; None: it has none
    :ivar settled: whether it has its reply, or is not worked on any more
    :ivar encodes_structs: replies may hold typed documents, not only plain
        values
    """

    redelivered = False
    shared = False
    returns = 0
    deadline: float | None = None
    settled = False
    encodes_structs = True

    @property
    def unwanted(self) -> bool:
        """Whether it is not to be worked on, since the daemon pauses."""
        return self.shared and bool(self.listener.paused)

    def is_lost(self) -> bool:
        """Whether its connection is closed: the broker delivers it again."""
        return not self.message._raw_message.channel.is_open

    def reply(self, reply: Any = None, failure: Any = None) -> None:
        """Send the reply, once.

        :raises MessageUndeliverable: the caller's queue is not there
        """
        if self.orig_msg_id:
            body = self._body(reply, failure)
            self.listener.driver.publish_reply(self.reply_q, body)
        self.settled = True

    def try_reply(self, reply: Any = None, failure: Any = None) -> bool:
        """Send the reply if that needs no waiting.

        :return: whether it was sent, or nobody waits for one
        """
        if not self.orig_msg_id:
            return True
        body = self._body(reply, failure)
        sent: bool = self.listener.driver.try_publish(self.reply_q, body)
        self.settled = sent
        return sent

    @property
    def reply_refused(self) -> bool:
        """Whether the caller's queue was missing or full a moment ago."""
        return bool(self.listener.driver.refuses(self.reply_q))

    def heartbeat(self) -> None:
        """Tell the caller that the request is still worked on.

        :raises MessageUndeliverable: the caller's queue is not there
        """
        if self.orig_msg_id:
            body = self._body(None, None, ending=False)
            self.listener.driver.publish_reply(self.reply_q, body)

    def _body(self, reply: Any, failure: Any, ending: bool = True) -> bytes:
        if failure:
            failure = common.serialize_remote_exception(failure)
        message = {
            'result': reply,
            'failure': failure,
            'ending': ending,
            '_msg_id': self.msg_id,
            amqp.UNIQUE_ID: uuid.uuid4().hex,
        }
        return _encode(
            {'oslo.version': '2.0', 'oslo.message': _encode(message).decode()}
        )

    def acknowledge(self) -> None:
        """Have the polling thread acknowledge it with its next poll."""
        self._message_operations_handler.do(self._acknowledge_now)

    def requeue(self) -> None:
        """Have the polling thread hold it for others, or for a better time.

        It may have been worked on, so it counts as delivered before.
        """
        self.settled = self.redelivered = True
        self._message_operations_handler.do(lambda: self.listener.hold(self))

    def _acknowledge_now(self) -> None:
        self.listener.settled(self.unique_id)
        try:
            self.message.acknowledge()
        except Exception as error:
            # The connection is lost, so the broker delivers it again.
            LOG.warning('Acknowledging a request failed: %s', error)

    def give_back(self) -> None:
        """Return it to its queue; called by the polling thread."""
        self.settled = True
        self.listener.settled(None)
        try:
            self.message.requeue()
        except Exception as error:
            LOG.warning('Returning a request to its queue failed: %s', error)


def reply_address(message: Any) -> tuple[str | None, str | None]:
    """Take from a message under which id its caller waits, and where.

    :return: (None, None) for a cast, and where either is no name that the
        broker could have, so that nobody can be answered
    """
    found, queue = message.pop('_msg_id', None), message.pop('_reply_q', None)
    if not (isinstance(found, str) and isinstance(queue, str)):
        return None, None
    return (found, queue) if queues.is_name(queue) else (None, None)


def deadline_of(properties: Any, sent_at: float | None = None) -> float | None:
    """Return when a message that is delivered now expires, monotonic.

    Its time to live is in milliseconds, as text; the broker, too, counts it
    anew in each queue.

    :param sent_at: when it was sent, in seconds since the epoch, where it is
        counted from then on: a message that is delivered once more, whose
        caller may have left and asked again
    """
    text: Any = (properties or {}).get('expiration')
    try:
        lives = int(text) / 1000
    except (TypeError, ValueError, OverflowError):
        return None
    since = 0.0 if sent_at is None else max(0.0, time.time() - sent_at)
    return time.monotonic() + lives - since
