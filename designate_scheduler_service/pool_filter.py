"""The pool filter ``scheduler_service``, which designate-central loads.

Designate makes one instance for each process and calls it from any thread.
"""

from __future__ import annotations

from typing import Any

import designate.conf
from designate import exceptions, objects
from designate.scheduler.filters import base

from designate_scheduler_service import options
from designate_scheduler_service.client import AskError, Pool, PoolClient, Zone

# Name of an error of the daemon -> error of Designate. All others say that
# the scheduler cannot be used now.
_ERRORS = {
    'NoValidPoolFound': exceptions.NoValidPoolFound,
    'ForcedPoolFilteredOut': exceptions.NoValidPoolFound,
    'PoolNotFound': exceptions.NoValidPoolFound,
    'MultiplePoolsFound': exceptions.MultiplePoolsFound,
    'Forbidden': exceptions.Forbidden,
    'InvalidRequest': exceptions.BadRequest,
    'PayloadTooLarge': exceptions.BadRequest,
}
# Who asks where a context names no user, such as one of a TSIG key.
_USER = 'designate-central'


class SchedulerServiceFilter(base.Filter):  # type: ignore[misc]
    """Keeps the one pool that the daemons of scheduler-service choose."""

    name = 'scheduler_service'

    def __init__(self, storage: Any) -> None:
        super().__init__(storage)
        options.register_opts(designate.conf.CONF)
        self._client = PoolClient(designate.conf.CONF)

    def filter(self, context: Any, pools: Any, zone: Any) -> Any:
        """Return a list of the one pool that is chosen among *pools*.

        :raises NoValidPoolFound: no pool passes, with the reasons
        :raises MultiplePoolsFound: several pass, and none is chosen
        :raises Forbidden: the daemons' policy does not allow it
        :raises BadRequest: the zone's attributes are not valid
        :raises CommunicationFailure: no daemon could answer
        """
        if not pools:
            return pools
        try:
            chosen = self._client.choose(
                _credentials(context),
                _zone(context, zone),
                [_pool(pool) for pool in pools],
            )
        except AskError as error:
            kind = _ERRORS.get(error.name, exceptions.CommunicationFailure)
            raise kind(str(error)) from None
        return objects.PoolList(
            objects=[pool for pool in pools if pool.id == chosen]
        )


def _credentials(context: Any) -> dict[str, Any]:
    """Return who asks: what policies read of a context, and no token."""
    return {
        'user_id': context.user_id or _USER,
        'project_id': context.project_id,
        'domain_id': context.domain_id,
        'system_scope': context.system_scope,
        'roles': list(context.roles or ()),
        'is_admin': bool(context.is_admin),
        'request_id': context.request_id,
        'global_request_id': context.global_request_id,
    }


def _zone(context: Any, zone: Any) -> Zone:
    return Zone(
        name=_value(zone, 'name'),
        id=_value(zone, 'id'),
        email=_value(zone, 'email'),
        project_id=_value(zone, 'tenant_id'),
        request_id=context.request_id,
        attributes=_attributes(zone),
    )


def _pool(pool: Any) -> Pool:
    return Pool(
        id=pool.id,
        name=pool.name,
        description=_value(pool, 'description'),
        attributes=_attributes(pool),
    )


def _value(document: Any, field: str) -> Any:
    """Return a field; None where it is not set."""
    return document[field] if document.obj_attr_is_set(field) else None


def _attributes(document: Any) -> dict[str, str]:
    """Return attributes by key; none where they were not loaded."""
    attributes = _value(document, 'attributes')
    return attributes.to_dict() if attributes is not None else {}
