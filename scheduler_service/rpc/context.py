"""The request context that travels with every message.

Stateless; any thread may use the module.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import oslo_messaging
from oslo_context import context

from scheduler_service import errors
from scheduler_service.bus.wire import SENT_AT
from scheduler_service.model import documents
from scheduler_service.model.limits import NAME_LENGTH

# Newer name -> older name, which is read if the newer is absent.
_TEXT = (
    ('user_id', 'user'),
    ('project_id', 'project'),
    ('domain_id', 'domain'),
    ('system_scope', 'system_scope'),
    ('request_id', 'request'),
    ('global_request_id', 'global_request'),
)


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


def credentials(ctxt: Any) -> dict[str, Any]:
    """Return the caller's identity and roles, as policy rules read them.

    :raises InvalidRequest: the context is absent, names no user and is not a
        service's own with ``is_admin``, or a value has the wrong type or does
        not fit the store
    """
    if not ctxt or not isinstance(ctxt, dict | Mapping):
        raise errors.InvalidRequest('context: required, but absent')
    values: dict[str, Any] = {}
    for name, older in _TEXT:
        value = ctxt.get(name) or ctxt.get(older)
        if value is not None and not isinstance(value, str):
            raise errors.InvalidRequest(
                f'context.{name}: expected a string', at=f'context.{name}'
            )
        values[name] = value
    documents.check_text(values, 'context')
    if len(values['project_id'] or '') > NAME_LENGTH:
        raise errors.InvalidRequest(
            f'context.project_id: expected at most {NAME_LENGTH} characters',
            at='context.project_id',
        )
    roles = ctxt.get('roles') or []
    if not isinstance(roles, list | tuple) or not all(
        isinstance(role, str) for role in roles
    ):
        raise errors.InvalidRequest(
            'context.roles: expected a list of strings', at='context.roles'
        )
    is_admin = ctxt.get('is_admin') is True
    if not values['user_id'] and not is_admin:
        raise errors.InvalidRequest(
            'context.user_id: required, but absent', at='context.user_id'
        )
    return {**values, 'roles': list(roles), 'is_admin': is_admin}
