"""What a share or block storage service asks for, as a request of ours.

These services send plain dicts in place of objects. Only the size and the
availability zone are read: what else such a request says, their own filters
have looked at. Stateless; any thread may call it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.compute.request import request_id, text
from scheduler_service.model import Request, documents


class _Properties(msgspec.Struct):
    """What is to be made; the size in GB."""

    size: int | None = None
    project_id: str | None = None
    user_id: str | None = None
    availability_zone: str | None = None


class _Spec(msgspec.Struct):
    """A request; which properties it has says of which service it is."""

    share_properties: _Properties | None = None
    volume_properties: _Properties | None = None
    availability_zone: str | None = None


def share(spec: Any, context: Mapping[str, Any]) -> Request:
    """Return a request of the share service.

    :param spec: as it is sent
    :param context: of the caller
    :raises InvalidRequest: it is none for one share, or cannot be read
    """
    return _request(spec, 'share_properties', context)


def volume(spec: Any, context: Mapping[str, Any]) -> Request:
    """Return a request of the block storage service.

    :param spec: as it is sent
    :param context: of the caller
    :raises InvalidRequest: it is none for one volume, or cannot be read
    """
    return _request(spec, 'volume_properties', context)


def _request(spec: Any, name: str, context: Mapping[str, Any]) -> Request:
    """Return a request for what the properties of a name say."""
    parsed = documents.arguments(spec, _Spec)
    found: _Properties | None = getattr(parsed, name)
    if found is None:
        raise errors.InvalidRequest(f'spec.{name}: required, but absent')
    size = found.size or 0
    return documents.request(
        {
            'request_id': request_id(context),
            'project_id': found.project_id or text(context, 'project_id'),
            'user_id': found.user_id or text(context, 'user_id'),
            'flavor': {'root_gb': size},
            'amounts': {'DISK_GB': size} if size else {},
            'availability_zone': found.availability_zone
            or parsed.availability_zone,
        }
    )
