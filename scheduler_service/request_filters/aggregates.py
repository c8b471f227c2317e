"""Request filters that narrow to aggregates, or keep off some."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler_service import errors
from scheduler_service.model import Aggregate, Request
from scheduler_service.request_filters.base import RequestFilter, Scope, uuids
from scheduler_service.settings import Settings

_TRAIT = 'trait:'
_TENANT = 'filter_tenant_id'


class RequireTenantAggregate(RequestFilter):
    """Keeps a project to its own aggregates, where it has any.

    Those with a metadata key that starts with ``filter_tenant_id`` and has
    the project's id as its whole value.
    """

    name = 'require_tenant_aggregate'

    def narrow(
        self,
        request: Request,
        aggregates: Mapping[int, Aggregate],
        settings: Settings,
        scope: Scope,
    ) -> None:
        """Require one of the project's aggregates.

        :raises RequestFilterFailed: it has none, and needs one
        """
        if not settings.limit_tenants_to_placement_aggregate:
            return
        own = uuids(
            one for one in aggregates.values() if _is_for(one, request)
        )
        if own:
            scope.required_aggregates.append(own)
        elif settings.placement_aggregate_required_for_tenants:
            raise errors.RequestFilterFailed(
                'No valid host was found. No hosts available for tenant',
                project_id=request.project_id,
                filter=self.name,
            )


class MapZoneToAggregate(RequestFilter):
    """Narrows to the aggregates of the availability zone asked for."""

    name = 'map_az_to_placement_aggregate'

    def narrow(
        self,
        request: Request,
        aggregates: Mapping[int, Aggregate],
        settings: Settings,
        scope: Scope,
    ) -> None:
        """Require one of the zone's aggregates, if it has any."""
        zone = request.availability_zone
        if not zone or not settings.query_placement_for_availability_zone:
            return
        found = uuids(
            one
            for one in aggregates.values()
            if one.metadata.get('availability_zone') == zone
        )
        if found:
            scope.required_aggregates.append(found)


class IsolateAggregates(RequestFilter):
    """Keeps requests off aggregates that are isolated by traits.

    An aggregate with any ``trait:NAME=required`` that neither flavor nor
    image requires is forbidden.
    """

    name = 'isolate_aggregates'

    def narrow(
        self,
        request: Request,
        aggregates: Mapping[int, Aggregate],
        settings: Settings,
        scope: Scope,
    ) -> None:
        """Forbid aggregates with a trait that is not required."""
        if not settings.enable_isolated_aggregate_filtering:
            return
        required = required_traits(request)
        scope.forbidden_aggregates |= {
            one.uuid
            for one in aggregates.values()
            if any(
                value == 'required'
                and key.startswith(_TRAIT)
                and key[len(_TRAIT) :] not in required
                for key, value in one.metadata.items()
            )
        }


def required_traits(request: Request) -> set[str]:
    """Return traits that flavor (numbered groups too) or image require."""
    found = set()
    for key, value in request.flavor.extra_specs.items():
        scope, colon, name = key.partition(':')
        group = scope.removeprefix('trait')
        if (
            value == 'required'
            and colon
            and scope.startswith('trait')
            and (not group or (group.isascii() and group.isdigit()))
        ):
            found.add(name)
    found.update(
        key[len(_TRAIT) :]
        for key, value in request.image_properties.items()
        if key.startswith(_TRAIT) and value == 'required'
    )
    # A trait without a name is nobody's.
    found.discard('')
    return found


def _is_for(aggregate: Aggregate, request: Request) -> bool:
    return any(
        key.startswith(_TENANT) and value == request.project_id
        for key, value in aggregate.metadata.items()
    )
