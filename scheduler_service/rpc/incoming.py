"""What a message says about itself, beside its method and its arguments.

Stateless; used by the polling thread and by the redelivery thread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from scheduler_service.engine.delivered_message import (
    DeliveredMessage,
    never,
)
from scheduler_service.rpc.context import sent_at
from scheduler_service.rpc.message_id import stored_id


def deadline(incoming: Any) -> float | None:
    """Return the monotonic time at which the caller gives up.

    It is counted from the delivery: a message does not say when it was sent.
    None for a cast, whose result is wanted however late it is.
    """
    found: float | None = getattr(incoming, 'deadline', None)
    return found


def is_late(incoming: Any) -> bool:
    """Say whether the caller has given up."""
    until = deadline(incoming)
    return until is not None and time.monotonic() > until


def is_call(incoming: Any) -> bool:
    """Say whether somebody waits for a reply."""
    return bool(getattr(incoming, 'orig_msg_id', True))


def delivered(ctxt: Any, incoming: Any) -> DeliveredMessage:
    """Return what is known of a message: who sent it, and how often it came.

    Where the driver gives messages no id, none can be delivered again.
    """
    lane = _lane(ctxt, incoming)
    context = ctxt if isinstance(ctxt, Mapping) else {}
    unique_id = getattr(incoming, 'unique_id', None)
    trace = getattr(incoming, 'trace', None)
    if not unique_id:
        return DeliveredMessage(lane=lane, context=context, trace=trace)
    redelivered = bool(getattr(incoming, 'redelivered', False))
    is_lost = getattr(incoming, 'is_lost', never)
    return DeliveredMessage(
        stored_id(unique_id),
        redelivered,
        sent_at(ctxt),
        lane,
        is_lost,
        context,
        trace,
    )


def _lane(ctxt: Any, incoming: Any) -> tuple[str, str]:
    """Return the reply queue and the project that a message comes from.

    Each such pair gets its fair share: many projects may ask through one
    service, and one project through several.
    """
    found = ctxt if isinstance(ctxt, Mapping) else {}
    project = found.get('project_id') or found.get('project') or ''
    replies = getattr(incoming, 'reply_q', None)
    # Either may be of any type, which need not be one that a dict can have.
    return str(replies or ''), str(project)
