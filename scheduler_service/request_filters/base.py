"""What a request filter is: it narrows a request before any host is seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from scheduler_service.model import Aggregate, Request
from scheduler_service.settings import Settings


@dataclasses.dataclass(slots=True)
class Scope:
    """What request filters add to a request.

    :ivar required_aggregates: sets of uuids; a host is in one of each set
    :ivar forbidden_aggregates: uuids; a host is in none of them
    :ivar required_traits: on top of what flavor and image require
    :ivar forbidden_traits: likewise
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
        """Return it as the parameters of a placement query.

        ``member_of=in:a,b`` for each set, ``member_of=!in:c,d`` for what is
        forbidden, ``required=T1,!T2`` for traits; uuids and names sorted.
        """
        parts = [
            f'member_of=in:{",".join(sorted(one))}'
            for one in self.required_aggregates
        ]
        if self.forbidden_aggregates:
            listed = ','.join(sorted(self.forbidden_aggregates))
            parts.append(f'member_of=!in:{listed}')
        traits = sorted(self.required_traits)
        traits += [f'!{name}' for name in sorted(self.forbidden_traits)]
        if traits:
            parts.append(f'required={",".join(traits)}')
        return '&'.join(parts)


class RequestFilter:
    """Base of request filters.

    :cvar name: by which the explanation names it
    """

    name: ClassVar[str] = ''

    def narrow(
        self,
        request: Request,
        aggregates: Mapping[int, Aggregate],
        settings: Settings,
        scope: Scope,
    ) -> None:
        """Add to *scope* what the request may not go without.

        :raises RequestFilterFailed: the request can go nowhere
        """
