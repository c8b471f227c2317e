"""What the placement service says of all providers, and as host reports.

Stateless; any thread may call it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from scheduler_service import errors
from scheduler_service.compute.placement.client import (
    UNBOUNDED,
    PlacementClient,
    Provider,
    Units,
)
from scheduler_service.model import (
    STANDARD_FIELDS,
    HostReport,
    Resource,
    UnitLimits,
)

_BAD = 400


class AllProviders(NamedTuple):
    """What a read of all providers found.

    :ivar since: time by the database's clock before it: claims that were
        made until then are in their use
    :ivar known: uuids of all root providers
    :ivar found: those that have a processor left, or some of a custom class
        that nodes without processors have, by uuid
    :ivar read_at: monotonic time before it
    """

    since: float
    known: set[str]
    found: dict[str, Provider]
    read_at: float


def read_all(
    client: PlacementClient, since: float, custom: Iterable[str]
) -> AllProviders:
    """Read all providers, with one call for processors and for each class.

    :param custom: resource classes of nodes that have no processors
    :raises PlacementUnavailable: the service does not answer
    """
    read_at = time.monotonic()
    known = client.provider_uuids()
    found = client.providers('VCPU')
    for name in custom:
        try:
            found = {**client.providers(name), **found}
        except errors.PlacementUnavailable as fault:
            # The service knows the class no more.
            if fault.facts.get('status') != _BAD:
                raise
    return AllProviders(since, known, found, read_at)


def report(
    node: Any,
    provider: Provider,
    units: Mapping[str, Units],
    counted: list[str] | None = None,
) -> HostReport:
    """Return what a provider says of a host.

    Capacity is what is left of the total after what is reserved, times the
    ratio; so the ratio is 1.

    :param units: resource class -> bounds of what the provider itself has
    :param counted: instances whose claims its use includes
    """
    changes: dict[str, Any] = {}
    for name, (total, used, ratio) in STANDARD_FIELDS.items():
        changes[total] = max(provider.capacity.get(name, 0), 0)
        changes[used] = provider.used.get(name, 0)
        changes[ratio] = 1.0
    changes['resources'] = {
        name: Resource(
            total=max(capacity, 0),
            used=provider.used.get(name, 0),
            **_bounds(units.get(name)),
        )
        for name, capacity in provider.capacity.items()
        if name not in STANDARD_FIELDS
    }
    changes['units'] = {
        name: UnitLimits(**_bounds(one))
        for name, one in units.items()
        if name in STANDARD_FIELDS
    }
    changes['traits'] = provider.traits
    return HostReport(node.host, node.node, changes, counted=counted)


def _bounds(units: Units | None) -> dict[str, int]:
    """Return the fields of a document that bound single allocations."""
    least, most, step = units or UNBOUNDED
    found = {'min_unit': least, 'step_size': step}
    return found if most == UNBOUNDED.most else {**found, 'max_unit': most}
