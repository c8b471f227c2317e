"""Groups of resources, each of which one provider of a host's tree has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import msgspec

from scheduler_service.model.inventory import (
    Count,
    Document,
    ResourceClass,
    Trait,
)
from scheduler_service.model.limits import Short

MAX_GROUPS = 64
Suffix = Annotated[str, msgspec.Meta(pattern=r'^[a-zA-Z0-9_-]{1,64}\Z')]


class ResourceGroup(Document):
    """Resources that one provider has to have, the host's own or one below.

    :ivar suffix: names the group, as in a query of the placement service
    :ivar aggregates: uuids, each entry one or several with commas between
        them; the provider has to be in one aggregate of each entry
    :ivar in_tree: uuid of a provider whose tree it has to be in; None: that
        of the host
    """

    suffix: Suffix
    resources: dict[ResourceClass, Count] = {}
    required: list[Trait] = []
    forbidden: list[Trait] = []
    aggregates: list[Short] = []
    forbidden_aggregates: list[Short] = []
    in_tree: Short | None = None


def check(
    groups: Sequence[ResourceGroup], same_subtree: Sequence[Sequence[str]]
) -> None:
    """Check that groups have different suffixes, and subtrees name them.

    :raises ValueError: says which does not
    """
    counts = Counter(one.suffix for one in groups)
    for suffix, count in counts.items():
        if count > 1:
            raise ValueError(f'expected different suffixes, got 2 x {suffix}')
    for suffix in {name for names in same_subtree for name in names}:
        if suffix not in counts:
            raise ValueError(f'same_subtree: there is no group {suffix}')


def total(groups: Sequence[ResourceGroup]) -> dict[str, int]:
    """Return resource class -> amount of all groups together."""
    found: Counter[str] = Counter()
    for one in groups:
        found.update(one.resources)
    return dict(found)
