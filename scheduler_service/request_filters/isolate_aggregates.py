"""The request filter isolate_aggregates."""

from __future__ import annotations

from scheduler_service.model import Aggregate, Request
from scheduler_service.model.aggregate_map import SharedUuids
from scheduler_service.request_filters.base import (
    RequestFilter,
    ScopedRequest,
    uuids_by,
)

_TRAIT_PREFIX = 'trait:'
_REQUIRED = 'required'


class IsolateAggregates(RequestFilter):
    """Keeps requests off aggregates that are reserved by traits.

    An aggregate with the metadata ``trait:NAME=required`` is forbidden unless
    the flavor or the image requires the trait; with several such keys, unless
    all of these traits are required.
    """

    name = 'isolate_aggregates'

    def apply(self, scoped: ScopedRequest) -> None:
        """Forbid aggregates with a trait that is not required."""
        request, aggregates, settings, scope = scoped
        if not settings.enable_isolated_aggregate_filtering:
            return
        reserved = uuids_by(aggregates, 'reserved', _reserving_traits)
        if not reserved:
            return
        every: frozenset[str] = aggregates.memoize(
            'reserving traits', lambda: frozenset().union(*reserved)
        )
        required = every & _required_traits(request)

        def work() -> frozenset[str]:
            return SharedUuids(
                uuid
                for traits, uuids in reserved.items()
                if not traits <= required
                for uuid in uuids
            )

        scope.forbid(aggregates.memoize(('isolated from', required), work))


def _reserving_traits(aggregate: Aggregate) -> list[frozenset[str]]:
    """Return the traits that a request needs to use an aggregate, together.

    Empty: every request may use the aggregate.
    """
    traits = frozenset(
        key.removeprefix(_TRAIT_PREFIX)
        for key, value in aggregate.metadata.items()
        if value == _REQUIRED and key.startswith(_TRAIT_PREFIX)
    )
    return [traits] if traits else []


def _required_traits(request: Request) -> set[str]:
    """Return the traits that the flavor or the image requires.

    The flavor's may be in numbered groups: ``trait1:NAME``.
    """
    traits = set()
    for key, value in request.flavor.extra_specs.items():
        scope, colon, name = key.partition(':')
        group = scope.removeprefix('trait')
        if (
            value == _REQUIRED
            and colon
            and scope.startswith('trait')
            and (not group or (group.isascii() and group.isdigit()))
        ):
            traits.add(name)
    traits.update(
        key.removeprefix(_TRAIT_PREFIX)
        for key, value in request.image_properties.items()
        if key.startswith(_TRAIT_PREFIX) and value == _REQUIRED
    )
    # No request can require the trait with the empty name.
    traits.discard('')
    return traits
