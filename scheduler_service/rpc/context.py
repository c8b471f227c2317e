"""Sends the request context with every message; stateless."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import oslo_messaging
from oslo_context import context

from scheduler_service import errors
from scheduler_service.bus.wire import SENT_AT


class ContextSerializer(oslo_messaging.NoOpSerializer):  # type: ignore[misc]
    """Sends a request context, or a dict, as a plain dict.

    The message itself consists of plain values, and is not changed.
    """

    def serialize_context(self, ctxt: Any) -> dict[str, Any]:
        """Return the context as a dict.

        :raises InvalidRequest: the context is of another type
        """
        if isinstance(ctxt, context.RequestContext):
            values: dict[str, Any] = ctxt.to_dict()
            return values
        if not isinstance(ctxt, Mapping):
            raise errors.InvalidRequest(
                'context: expected a request context or a dict, got '
                f'{type(ctxt).__name__}',
                at='context',
            )
        return dict(ctxt)

    def deserialize_context(self, ctxt: Any) -> Any:
        """Return the dict unchanged."""
        return ctxt


class StampingSerializer(ContextSerializer):
    """Adds the time of sending to each message.

    The time shows whether a late request was sent before or after a release.
    """

    def serialize_context(self, ctxt: Any) -> dict[str, Any]:
        """Return the context as a dict with the time; the original stays."""
        values: dict[str, Any] = super().serialize_context(ctxt)
        if values:
            values[SENT_AT] = time.time()
        return values
