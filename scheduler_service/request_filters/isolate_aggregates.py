"""isolate_aggregates."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler_service.model import Aggregate, Request
from scheduler_service.request_filters.base import RequestFilter, Scope
from scheduler_service.settings import Settings

_TRAIT_PREFIX = 'trait:'


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
        required = _required_traits(request)
        scope.forbidden_aggregates |= {
            one.uuid
            for one in aggregates.values()
            if any(
                value == 'required'
                and key.startswith(_TRAIT_PREFIX)
                and key[len(_TRAIT_PREFIX) :] not in required
                for key, value in one.metadata.items()
            )
        }


def _required_traits(request: Request) -> set[str]:
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
        key[len(_TRAIT_PREFIX) :]
        for key, value in request.image_properties.items()
        if key.startswith(_TRAIT_PREFIX) and value == 'required'
    )
    # A trait without a name is nobody's.
    found.discard('')
    return found
