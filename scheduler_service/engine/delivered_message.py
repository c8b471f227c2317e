"""The message that a job came with: immutable, so any thread may read it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import msgspec

from scheduler_service import tracing
from scheduler_service.model.limits import NAME_LENGTH


def never() -> bool:
    """Return False: nothing tells that a message is lost."""
    return False


class DeliveredMessage(msgspec.Struct, frozen=True):
    """The message that a job came with.

    :ivar id: of the message, the same with each delivery; empty: there is no
        message that can be delivered again
    :ivar redelivered: whether it was delivered before, to any daemon
    :ivar sent_at: seconds since the epoch at which it was sent, by the
        caller's clock; None: the caller did not say
    :ivar lane: of whoever sent it: callers get fair shares by it
    :ivar is_lost: says whether the connection that it came over is closed, so
        that the broker may have given it to another daemon
    :ivar trace: gets the stages of its requests; None: it is not traced
    :ivar context: of the caller, as it was sent
    """

    id: str = ''
    redelivered: bool = False
    sent_at: float | None = None
    lane: Hashable = ''
    is_lost: Callable[[], bool] = never
    context: Mapping[str, Any] = {}
    trace: tracing.Trace | None = None

    def sent_id(self, name: str = 'request_id') -> str | None:
        """Return an id that the caller's log knows the request by.

        :param name: or ``global_request_id``
        :return: None where there is none that can be kept
        """
        sent = self.context.get(name)
        if not sent or not isinstance(sent, str):
            return None
        fits = len(sent) <= NAME_LENGTH and sent.isprintable()
        return sent if fits else None

    def origin(self, request_id: str | None) -> tuple[str | None, str | None]:
        """Return the caller's ids that are kept beside an id of a request."""
        sent = self.sent_id()
        own = sent if sent != request_id else None
        return own, self.sent_id('global_request_id')

    def key(self, entry: int = 0) -> str | None:
        """Return the idempotency key of an entry; None: there is none."""
        return f'{self.id}/{entry}' if self.id else None


NO_MESSAGE = DeliveredMessage()
