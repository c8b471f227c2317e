"""The base class of request filters, and the scope that they fill."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from scheduler_service.model import Aggregate, Request
from scheduler_service.settings import Settings


@dataclasses.dataclass(slots=True)
class Scope:
    """Restrictions that request filters add to a request.

    :ivar required_aggregates: sets of uuids; a host has to be in one
        aggregate of each set
    :ivar forbidden_aggregates: uuids; a host must be in none of them
    :ivar required_traits: in addition to those of flavor and image
    :ivar forbidden_traits: in addition to those of flavor and image
    """

    required_aggregates: list[frozenset[str]] = dataclasses.field(
        default_factory=list
    )
    forbidden_aggregates: set[str] = dataclasses.field(default_factory=set)
    required_traits: set[str] = dataclasses.field(default_factory=set)
    forbidden_traits: set[str] = dataclasses.field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(
            self.required_aggregates
            or self.forbidden_aggregates
            or self.required_traits
            or self.forbidden_traits
        )

    def query(self) -> str:
        """Return the scope as the parameters of a placement query.

        ``member_of=in:a,b`` for each set, ``member_of=!in:c,d`` for the
        forbidden aggregates, ``required=T1,!T2`` for traits; uuids and names
        are sorted.
        """
        parameters = [
            f'member_of=in:{",".join(sorted(uuids))}'
            for uuids in self.required_aggregates
        ]
        if self.forbidden_aggregates:
            uuids = ','.join(sorted(self.forbidden_aggregates))
            parameters.append(f'member_of=!in:{uuids}')
        traits = sorted(self.required_traits)
        traits += [f'!{name}' for name in sorted(self.forbidden_traits)]
        if traits:
            parameters.append(f'required={",".join(traits)}')
        return '&'.join(parameters)


class RequestFilter:
    """Base of request filters.

    A request filter restricts a request before any host is looked at. It
    runs once for a request.

    :cvar name: name of the filter in errors and explanations
    """

    name: ClassVar[str] = ''

    def apply(
        self,
        request: Request,
        aggregates: Mapping[int, Aggregate],
        settings: Settings,
        scope: Scope,
    ) -> None:
        """Add the filter's restrictions to *scope*.

        :param aggregates: all aggregates by id
        :raises RequestFilterFailed: no host at all may take the request
        """
