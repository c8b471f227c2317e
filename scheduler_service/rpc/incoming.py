"""Properties of a message, and parsing of its arguments.

Stateless; used by the consumer's thread and by the redelivery thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.bus.wire import Request, sent_at
from scheduler_service.engine.jobs import DeliveredMessage
from scheduler_service.model import documents, limits

# Larger requests fail with PayloadTooLarge.
REQUEST_MAX_BYTES = 1024 * 1024


def stored_id(unique_id: Any) -> str:
    """Return the stored form of a message's id: a digest of a long id.

    The sender chooses the id, which may be any text.
    """
    text = str(unique_id)
    if len(text) <= limits.MESSAGE_ID_LENGTH and text.isprintable():
        return text
    return hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()


def has_copies(incoming: Request) -> bool:
    """Whether other daemons may process the same message."""
    return incoming.redelivered or incoming.is_lost()


def delivered(ctxt: Mapping[str, Any], incoming: Request) -> DeliveredMessage:
    """Return the sender and the delivery of a message.

    One without an id is not recognised if it is delivered again.
    """
    lane = _lane(ctxt, incoming)
    if not incoming.unique_id:
        return DeliveredMessage(lane=lane, context=ctxt, trace=incoming.trace)
    return DeliveredMessage(
        stored_id(incoming.unique_id),
        incoming.redelivered,
        sent_at(ctxt),
        lane,
        incoming.is_lost,
        ctxt,
        incoming.trace,
    )


def _lane(ctxt: Mapping[str, Any], incoming: Request) -> tuple[str, str]:
    """Return the reply queue and the project that a message comes from.

    Each pair gets its fair share: many projects may call through one service,
    and one project through several.
    """
    project = ctxt.get('project_id') or ctxt.get('project') or ''
    # It may be of any type, also of one that is not hashable.
    return incoming.reply_q or '', str(project)


def parse_arguments(
    args: Any, kind: type[Any], max_bytes: int = REQUEST_MAX_BYTES
) -> Any:
    """Return the arguments as an object of *kind*.

    :param max_bytes: the most that they may take, encoded as JSON
    :raises PayloadTooLarge: too many bytes, or nested too deeply
    :raises InvalidRequest: with the place and what was expected there
    """
    try:
        text = msgspec.json.encode(args)
    except (TypeError, ValueError, RecursionError) as fault:
        documents.check_depth(args)
        raise errors.InvalidRequest(f'cannot be read: {fault}') from None
    if text.count(b'{') + text.count(b'[') > documents.MAX_DEPTH:
        documents.check_depth(args)
    size = len(text)
    if size > max_bytes:
        raise errors.PayloadTooLarge(
            f'{size} bytes, at most {max_bytes} are allowed',
            size=size,
            limit=max_bytes,
        )
    return documents.arguments(args, kind)
