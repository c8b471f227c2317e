"""Checks requests against the policy, before they are queued.

The engine checks the owners of the instances, groups and zones in a request,
since it has their rows. Stateless; used by the bus thread and by the
redelivery thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_service import errors
from scheduler_service.bus import wire
from scheduler_service.model import Request, ZoneRequest, documents
from scheduler_service.model.limits import NAME_LENGTH
from scheduler_service.policies import Enforcer
from scheduler_service.request_context import RequestContext

_TEXT = (
    'user_id', 'project_id', 'domain_id', 'system_scope', 'request_id',
    'global_request_id',
)  # fmt: skip


def caller(enforcer: Enforcer, incoming: wire.Request) -> RequestContext:
    """Return the caller of a method, whose name is that of its rule.

    :raises InvalidRequest: the context does not name a caller
    :raises Forbidden: the policy does not let the caller use the method, not
        even for its own project
    """
    context = RequestContext(enforcer, credentials(incoming.ctxt))
    try:
        context.authorize(incoming.method, {'project_id': context.project_id})
    except errors.Forbidden as error:
        if context.project_id:
            raise
        raise errors.Forbidden(
            f'{error}: the context names no project (context.project_id)',
            **error.facts,
        ) from None
    return context


def _check(
    caller: RequestContext,
    rule: str,
    document: Request | ZoneRequest,
    *special: str,
) -> None:
    """Check a document's project, or the caller's, and further rules."""
    project_id = document.project_id = document.project_id or caller.project_id
    if project_id != caller.project_id:
        caller.authorize_project(rule, project_id, f'project {project_id}')
    for name in special:
        caller.authorize(f'{rule}:{name}', {'project_id': project_id})


def select(
    caller: RequestContext, request: Request, claim: bool = True
) -> None:
    """Check a request; it belongs to the caller's project if it names none.

    :raises Forbidden: the policy does not allow it for this project, or not
        with these hosts, or not without a claim
    """
    special = ['forced_host'] if any(request.named_places) else []
    if not claim:
        special.append('dry_run')
    _check(caller, 'select_destinations', request, *special)


def zone(caller: RequestContext, zone: ZoneRequest, keep: bool = True) -> None:
    """Check a zone; it belongs to the caller's project if it names none.

    :param zone: without an id derived from its project, which may change
    :param keep: false: select among the stored pools, and store nothing
    :raises Forbidden: the policy does not allow it for this project, or not
        without storing the pool
    """
    _check(caller, 'schedule_zone', zone, *([] if keep else ['dry_run']))


def credentials(ctxt: Any) -> dict[str, Any]:
    """Return the caller's identity and roles, as policy rules read them.

    :raises InvalidRequest: the context is absent, names no user and is not a
        service's own with ``is_admin``, or a value has the wrong type or does
        not fit the store
    """
    if not ctxt or not isinstance(ctxt, Mapping):
        raise errors.InvalidRequest('context: required, but absent')
    values: dict[str, Any] = {}
    for name in _TEXT:
        value = ctxt.get(name) or None
        if value is not None and not isinstance(value, str):
            raise errors.InvalidRequest.at(
                f'context.{name}', 'expected a string'
            )
        values[name] = value
    documents.check_text(values, 'context')
    if len(values['project_id'] or '') > NAME_LENGTH:
        raise errors.InvalidRequest.at(
            'context.project_id', f'expected at most {NAME_LENGTH} characters'
        )
    roles = ctxt.get('roles') or []
    if not isinstance(roles, list | tuple) or not all(
        isinstance(role, str) for role in roles
    ):
        raise errors.InvalidRequest.at(
            'context.roles', 'expected a list of strings'
        )
    is_admin = ctxt.get('is_admin') is True
    if not values['user_id'] and not is_admin:
        raise errors.InvalidRequest.at(
            'context.user_id', 'required, but absent'
        )
    return {**values, 'roles': list(roles), 'is_admin': is_admin}
