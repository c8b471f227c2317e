"""The base class of request filters, and the scope that they fill."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Hashable, Iterable
from typing import Any, ClassVar, NamedTuple

from scheduler_service.model import Aggregate, Request
from scheduler_service.model.aggregate_map import AggregateMap, SharedUuids
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
    forbidden_aggregates: frozenset[str] = frozenset()
    required_traits: set[str] = dataclasses.field(default_factory=set)
    forbidden_traits: set[str] = dataclasses.field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(
            self.required_aggregates
            or self.forbidden_aggregates
            or self.required_traits
            or self.forbidden_traits
        )

    def forbid(self, uuids: frozenset[str]) -> None:
        """Forbid aggregates as well.

        Often a single filter forbids aggregates, the same for many requests:
        its set is not copied, since copying and hashing are slow.
        """
        if self.forbidden_aggregates:
            uuids = self.forbidden_aggregates | uuids
        self.forbidden_aggregates = uuids

    def query(self, most: int = sys.maxsize) -> str:
        """Return the scope as the parameters of a placement query.

        ``member_of=in:a,b`` for each set, ``member_of=!in:c,d`` for the
        forbidden aggregates, ``required=T1,!T2`` for traits; uuids and names
        are sorted.

        :param most: name so many aggregates, traits and sets at most, and
            count the others
        """
        sets = self.required_aggregates
        parameters = [
            f'member_of=in:{_joined(sorted(uuids), most)}'
            for uuids in sets[:most]
        ]
        if len(sets) > most:
            parameters.append(f'... ({len(sets) - most:,} more)')
        if self.forbidden_aggregates:
            uuids = _joined(sorted(self.forbidden_aggregates), most)
            parameters.append(f'member_of=!in:{uuids}')
        traits = sorted(self.required_traits)
        traits += [f'!{name}' for name in sorted(self.forbidden_traits)]
        if traits:
            parameters.append(f'required={_joined(traits, most)}')
        return '&'.join(parameters)


def _joined(named: list[str], most: int) -> str:
    if len(named) > most:
        named[most:] = [f'... ({len(named) - most:,} more)']
    return ','.join(named)


class ScopedRequest(NamedTuple):
    """A request, what its restrictions depend on, and the restrictions.

    :ivar aggregates: all aggregates by id
    :ivar scope: gets the restrictions
    """

    request: Request
    aggregates: AggregateMap
    settings: Settings
    scope: Scope


class RequestFilter:
    """Base of request filters.

    A request filter restricts a request before any host is looked at. It
    runs once for a request.

    :cvar name: name of the filter in errors and explanations
    """

    name: ClassVar[str] = ''

    def apply(self, scoped: ScopedRequest) -> None:
        """Add the filter's restrictions to the scope.

        :raises RequestFilterFailed: no host at all may take the request
        """


_NONE: frozenset[str] = frozenset()
Keys = Callable[[Aggregate], Iterable[Any]]


def uuids_by(
    aggregates: AggregateMap, name: str, keys: Keys
) -> dict[Any, frozenset[str]]:
    """Return uuids of aggregates by their keys.

    :param name: of the index
    :param keys: returns the keys under which an aggregate is found
    """

    def work() -> dict[Any, frozenset[str]]:
        by_key: dict[Any, set[str]] = {}
        for aggregate in aggregates.values():
            for key in keys(aggregate):
                by_key.setdefault(key, set()).add(aggregate.uuid)
        return {key: SharedUuids(uuids) for key, uuids in by_key.items()}

    index: dict[Any, frozenset[str]] = aggregates.memoize(name, work)
    return index


def uuids_of(
    aggregates: AggregateMap, name: str, keys: Keys, key: Hashable
) -> frozenset[str]:
    """Return the uuids of the aggregates with one key."""
    return uuids_by(aggregates, name, keys).get(key, _NONE)


def trait_name(value: Any) -> str:
    """Return a value as names of traits spell it: ``RAW_ISO``."""
    return str(value).upper().replace('-', '_')
