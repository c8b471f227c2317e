"""Calls on the bus inside a process, with any properties of a message."""

from __future__ import annotations

import json
import queue
import uuid
from collections.abc import Callable
from typing import Any

from scheduler_service.bus import inproc, wire


class Replies:
    """The queue of a caller."""

    def __init__(self, get: Callable[..., bytes], empty: Any) -> None:
        self._get = get
        self.empty = empty

    def get(self, timeout: float) -> tuple[str, str | None]:
        """Wait for a reply; return its result as JSON, and its failure."""
        reply = wire.read(self._get(timeout=timeout), wire.PROPERTIES)
        return json.dumps(reply['result']), reply['failure']


def send(
    bus: str,
    queue_name: str,
    context: dict[str, Any],
    message: dict[str, Any],
    unique_id: str = '',
    redelivered: bool = False,
    timeout: float | None = None,
) -> Replies:
    """Send a call; return the queue that its reply is for.

    :param bus: name of the broker
    :param unique_id: of the message; empty: a new one
    :param timeout: after how many seconds the caller gives up
    """
    broker = inproc.broker(bus)
    name = f'reply_{uuid.uuid4().hex}'
    replies = broker.replies[name] = queue.Queue()
    content = wire.cast(context, message, _msg_id=name, _reply_q=name)
    if unique_id:
        content['_unique_id'] = unique_id
    properties = dict(wire.PROPERTIES)
    if timeout is not None:
        properties['expiration'] = str(int(1000 * timeout))
    sent = inproc.Envelope(wire.encode(content), properties, redelivered)
    broker.put(queue_name, sent)
    return Replies(replies.get, replies.empty)
