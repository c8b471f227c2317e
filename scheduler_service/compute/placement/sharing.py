"""Providers that share inventory with the hosts of their aggregates.

Most are storage pools: hosts that use a pool have no disk of their own. One
thread reads them from the placement service; any thread may look them up.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from scheduler_service.compute.placement.candidates import Tree
from scheduler_service.compute.placement.client import (
    PlacementClient,
    Provider,
    Roots,
)

_SHARES = 'MISC_SHARES_VIA_AGGREGATE'


class Shared(NamedTuple):
    """What a provider shares of one resource class.

    :ivar hosts: uuids of hosts' providers that have none of their own
    """

    uuid: str
    name: str
    capacity: int
    used: int
    hosts: frozenset[str]


class _Aggregates(msgspec.Struct):
    aggregates: list[str]


class SharedProviders:
    """The provider that shares each class with each host.

    Of several, the one with most free capacity counts: one provider gives all
    that an instance takes of a class.

    :param interval: seconds after which all are read again
    """

    def __init__(self, client: PlacementClient, interval: float) -> None:
        self._client = client
        self._interval = interval
        # Most free capacity first.
        self._shared: tuple[Shared, ...] = ()
        self._read_at = -1e9

    def follow(self) -> None:
        """Read all again where that is due.

        :raises PlacementUnavailable: the service does not answer
        """
        if time.monotonic() - self._read_at < self._interval:
            return
        shared: list[Shared] = []
        path = f'/resource_providers?required={_SHARES}'
        for provider in self._client.read(path, Roots).resource_providers:
            shared += self._read(provider.uuid)
        self._shared = tuple(
            sorted(shared, key=lambda share: share.used - share.capacity)
        )
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
        for name in sorted(provider.capacity):
            own = self._uuids(f'{path}&resources={name}:1')
            yield Shared(
                uuid,
                name,
                provider.capacity[name],
                provider.used.get(name, 0),
                members - own - {uuid},
            )

    def _uuids(self, path: str) -> frozenset[str]:
        providers = self._client.read(path, Roots).resource_providers
        return frozenset(provider.uuid for provider in providers)

    def gives(self, names: Iterable[str]) -> bool:
        """Whether any host has one of these classes from another provider."""
        return not {share.name for share in self._shared}.isdisjoint(names)

    def _of(self, uuid: str) -> Mapping[str, Shared]:
        """Return resource class -> share, for a host's provider."""
        shares: dict[str, Shared] = {}
        for share in self._shared:
            if uuid in share.hosts:
                shares.setdefault(share.name, share)
        return shares

    def add_to(self, provider: Provider) -> Provider:
        """Return a host's provider with all shares added."""
        new = [
            share
            for name, share in self._of(provider.uuid).items()
            if not provider.capacity.get(name)
        ]
        if not new:
            return provider
        return provider._replace(
            capacity=provider.capacity
            | {share.name: share.capacity for share in new},
            used=provider.used | {share.name: share.used for share in new},
        )

    def tree(self, uuid: str, resources: Mapping[str, int]) -> Tree | None:
        """Return allocations on a host; None: all are of its own provider.

        :param resources: resource class -> amount
        """
        shared = self._of(uuid)
        if shared.keys().isdisjoint(resources):
            return None
        allocations: dict[str, dict[str, int]] = {}
        for name, amount in resources.items():
            giver = shared[name].uuid if name in shared else uuid
            allocations.setdefault(giver, {})[name] = amount
        return Tree(allocations, {'': [*allocations]})
