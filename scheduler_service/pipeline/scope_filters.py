"""The filters that every request passes by what request filters ask.

Each judges a distinct set of aggregates or traits once.
"""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.filters.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.request_filters import Scope, scope_of
from scheduler_service.settings import Settings

# How many aggregates a reason names at most.
_MOST_NAMED = 5


class Aggregates(HostFilter):
    """Leaves hosts in the aggregates that request filters narrowed to."""

    name = 'aggregates'
    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Judge each distinct set of aggregates once."""
        scope = _scope(table, request, settings)
        every = table.topology.aggregates

        def verdict(ids: frozenset[int]) -> bool:
            own = {every[one].uuid for one in ids}
            return not own & scope.forbidden_aggregates and all(
                own & one for one in scope.required_aggregates
            )

        return table.by_aggregates(verdict)

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the aggregates that are required and forbidden."""
        scope = _scope(table, request, settings)
        required, forbidden = (
            scope.required_aggregates,
            scope.forbidden_aggregates,
        )
        if not required and not forbidden:
            return None
        return tuple(required), forbidden

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the aggregate that it must not be in, or those it needs."""
        scope = _scope(table, request, settings)
        every = table.topology.aggregates
        own = [every[one] for one in table.coded['aggregate_set'].at(row)]
        for aggregate in own:
            if aggregate.uuid in scope.forbidden_aggregates:
                return (
                    f'the host is in aggregate {aggregate.name} '
                    f'({aggregate.uuid}), which the request must not use'
                )
        uuids = {aggregate.uuid for aggregate in own}
        missed = [one for one in scope.required_aggregates if not one & uuids]
        wanted = Scope(required_aggregates=missed).query(_MOST_NAMED)
        return f'the host is not in {wanted}'


class Traits(HostFilter):
    """Leaves hosts with every required trait and no forbidden one.

    Those of flavor and image, and those that request filters add.
    """

    name = 'traits'
    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Judge each distinct set of traits once."""
        required, forbidden = self.mask_key(table, request, settings)

        def verdict(have: frozenset[str]) -> bool:
            return required <= have and not forbidden & have

        return table.coded['trait_set'].mask_where(verdict)

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Return the traits that are required and those forbidden."""
        scope = _scope(table, request, settings)
        return (
            request.required_traits | scope.required_traits,
            request.forbidden_traits | scope.forbidden_traits,
        )

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the traits that are missing or forbidden."""
        have = table.coded['trait_set'].at(row)
        required, forbidden = self.mask_key(table, request, settings)
        lacks = [f'lacks {name}' for name in sorted(required - have)]
        return '; '.join(
            lacks
            + [f'has the forbidden {n}' for n in sorted(forbidden & have)]
        )


def _scope(table: HostTable, request: Request, settings: Settings) -> Scope:
    return scope_of(request, table.topology.aggregates, settings)
