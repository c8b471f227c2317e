"""Providers that share what they have with the hosts of their aggregates.

A pool of storage, mostly: hosts that use it have no disk of their own. One
thread reads; any may ask, for what was read last.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from scheduler_service.compute.placement.candidates import Tree
from scheduler_service.compute.placement.client import (
    PLAIN,
    PlacementClient,
    Provider,
    Roots,
)

_SHARES = 'MISC_SHARES_VIA_AGGREGATE'


class Shared(NamedTuple):
    """What a provider shares of one resource class.

    :ivar hosts: uuids of the providers that have none of their own
    """

    uuid: str
    name: str
    capacity: int
    used: int
    hosts: frozenset[str]

    @property
    def room(self) -> int:
        """How much is left."""
        return self.capacity - self.used


class _Aggregates(msgspec.Struct):
    aggregates: list[str]


class SharedProviders:
    """What hosts have of each class from a provider that shares it.

    Of several that do, the one with most room counts: what an instance takes
    of a class is given by one provider.

    :param interval: seconds after which all are read again
    """

    def __init__(self, client: PlacementClient, interval: float) -> None:
        self._client = client
        self._interval = interval
        # Most room first.
        self._shared: tuple[Shared, ...] = ()
        self._read_at = -1e9

    def follow(self) -> None:
        """Read all again where that is due.

        :raises PlacementUnavailable: the service does not answer
        """
        if time.monotonic() - self._read_at < self._interval:
            return
        found: list[Shared] = []
        path = f'/resource_providers?required={_SHARES}'
        for one in self._client.read(path, Roots).resource_providers:
            found += self._read(one.uuid)
        self._shared = tuple(sorted(found, key=lambda one: -one.room))
        self._read_at = time.monotonic()

    def _read(self, uuid: str) -> Iterable[Shared]:
        """Yield what a provider shares."""
        path = f'/resource_providers/{uuid}'
        aggregates = self._client.read(
            f'{path}/aggregates', _Aggregates
        ).aggregates
        provider = self._client.provider(uuid)
        if not aggregates or provider is None:
            return
        path = f'/resource_providers?member_of=in:{",".join(aggregates)}'
        members = self._uuids(path)
        for name in sorted(PLAIN & provider.capacity.keys()):
            own = self._uuids(f'{path}&resources={name}:1')
            yield Shared(
                uuid,
                name,
                provider.capacity[name],
                provider.used.get(name, 0),
                members - own - {uuid},
            )

    def _uuids(self, path: str) -> frozenset[str]:
        found = self._client.read(path, Roots).resource_providers
        return frozenset(one.uuid for one in found)

    def of(self, uuid: str) -> Mapping[str, Shared]:
        """Return resource class -> what a host's provider has of others."""
        found: dict[str, Shared] = {}
        for one in self._shared:
            if uuid in one.hosts:
                found.setdefault(one.name, one)
        return found

    def add_to(self, provider: Provider) -> Provider:
        """Return a host's provider with what others share with it."""
        shared = self.of(provider.uuid) if self._shared else {}
        new = {
            name: one
            for name, one in shared.items()
            if not provider.capacity.get(name)
        }
        if not new:
            return provider
        return provider._replace(
            capacity={
                **provider.capacity,
                **{name: one.capacity for name, one in new.items()},
            },
            used={
                **provider.used,
                **{name: one.used for name, one in new.items()},
            },
        )

    def tree(self, uuid: str, resources: Mapping[str, int]) -> Tree | None:
        """Return allocations on a host; None: all are of its own provider.

        :param resources: resource class -> amount
        """
        shared = self.of(uuid) if self._shared else {}
        if shared.keys().isdisjoint(resources):
            return None
        allocations: dict[str, dict[str, int]] = {}
        for name, amount in resources.items():
            giver = shared[name].uuid if name in shared else uuid
            allocations.setdefault(giver, {})[name] = amount
        return Tree(allocations, {'': [*allocations]})
