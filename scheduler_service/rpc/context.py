"""The request context that travels with every message.

Stateless; any thread may use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import oslo_messaging
from oslo_context import context

from scheduler_service import errors
from scheduler_service.model import documents

_TEXT = (
    'user_id',
    'project_id',
    'domain_id',
    'system_scope',
    'request_id',
    'global_request_id',
)


class ContextSerializer(oslo_messaging.NoOpSerializer):  # type: ignore[misc]
    """Sends a request context, or a dict, as a plain dict.

    The message itself consists of plain values, and is not changed.
    """

    def serialize_context(self, ctxt: Any) -> dict[str, Any]:
        """Return the context as a dict."""
        if isinstance(ctxt, context.RequestContext):
            values: dict[str, Any] = ctxt.to_dict()
            return values
        return dict(ctxt)

    def deserialize_context(self, ctxt: Any) -> Any:
        """Return the dict unchanged."""
        return ctxt


def credentials(ctxt: Any) -> dict[str, Any]:
    """Return the caller's identity and roles, as policy rules read them.

    :raises InvalidRequest: there is no context, or one of its values has the
        wrong type
    """
    if not isinstance(ctxt, Mapping) or not ctxt:
        raise errors.InvalidRequest('context: required, but absent')
    values: dict[str, Any] = {}
    for name in _TEXT:
        value = ctxt.get(name) or ctxt.get(name.removesuffix('_id'))
        if value is not None and not isinstance(value, str):
            raise errors.InvalidRequest(
                f'context.{name}: expected a string', at=f'context.{name}'
            )
        values[name] = value
    documents.check_text(values, 'context')
    roles = ctxt.get('roles') or []
    if not isinstance(roles, list | tuple) or not all(
        isinstance(role, str) for role in roles
    ):
        raise errors.InvalidRequest(
            'context.roles: expected a list of strings', at='context.roles'
        )
    return {
        **values,
        'roles': list(roles),
        'is_admin': ctxt.get('is_admin') is True,
    }
