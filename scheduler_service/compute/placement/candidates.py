"""Queries of the placement service for allocation candidates, and its answers.

Only requests that need more than amounts of the host's own provider need the
query: the service knows which of several providers below it fit.

Some providers share inventory with the hosts of their aggregates. Most are
storage pools: hosts that use a pool have no disk of their own. One thread
reads them from the placement service; any thread may look them up.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from scheduler_service.columns import HostTable
from scheduler_service.compute.placement.client import (
    PLAIN,
    PlacementClient,
    Provider,
    Roots,
)
from scheduler_service.model import Request, Selection
from scheduler_service.model.request_parts import PciRequest, ResourceGroup
from scheduler_service.pipeline import Assignment, Bonuses
from scheduler_service.request_filters import Scope

_SHARES = 'MISC_SHARES_VIA_AGGREGATE'


class Tree(NamedTuple):
    """Allocations of several providers.

    :ivar allocations: uuid of a provider -> resource class -> amount
    :ivar mappings: suffix of a group -> uuids of its providers; the empty
        suffix stands for what is in no group
    """

    allocations: dict[str, dict[str, int]]
    mappings: dict[str, list[str]]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Tree:
        """Read an allocation request as the service gives it."""
        return cls(
            {
                uuid: dict(allocation['resources'])
                for uuid, allocation in document['allocations'].items()
            },
            {
                name: list(uuids)
                for name, uuids in document.get('mappings', {}).items()
            },
        )

    @property
    def document(self) -> dict[str, Any]:
        """The allocations and mappings, as the service takes them."""
        return {
            'allocations': {
                uuid: {'resources': amounts}
                for uuid, amounts in self.allocations.items()
            },
            'mappings': self.mappings,
        }


def with_tree(selected: Selection, tree: Tree | None) -> Selection:
    """Return a selection with the tree's allocations; None: without any."""
    if tree is None and selected.allocation is msgspec.UNSET:
        return selected
    allocation = msgspec.UNSET if tree is None else tree.document
    # A copy: selections are shared by the instances of a request.
    return msgspec.structs.replace(selected, allocation=allocation)


def with_devices(request: Request, tree: Tree) -> Request:
    """Return a request for just those PCI devices that a candidate gives."""
    devices: list[PciRequest] = []
    for device in request.pci_requests:
        providers = Counter(
            uuid
            for suffix, uuids in tree.mappings.items()
            for uuid in uuids
            if device.groups and suffix.startswith(f'{device.groups}-')
        )
        devices += [
            msgspec.structs.replace(
                device,
                count=count,
                alternatives=[
                    {**properties, 'rp_uuid': uuid}
                    for properties in device.alternatives
                ],
            )
            for uuid, count in providers.items()
        ] or [device]
    return request.having(pci_requests=devices)


def is_needed(request: Request) -> bool:
    """Whether only the service can say how a request fits a host."""
    return bool(request.provider_groups) or not (
        request.own_resources.keys() <= PLAIN
    )


class Candidates:
    """The candidates for the instances of a request, by host.

    They travel with a job: the thread that has the job has them.

    :ivar is_whole: whether a query looked at all hosts
    :ivar bounds: for each instance, the store ids of the hosts that it may
        be on, each with an addition of 0 to its weight
    """

    def __init__(self, instances: int, is_whole: bool = False) -> None:
        self.is_whole = is_whole
        self.bounds: Bonuses = [{} for _ in range(instances)]
        self._trees: dict[str, list[Tree]] = {}
        self._free: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        """How many hosts there are."""
        return len(self._trees)

    def add(self, provider: str, host_id: int, trees: Sequence[Tree]) -> None:
        """Add the candidates of a host.

        In random order: all daemons get them in the same one.

        :param provider: uuid of its own provider
        :param host_id: in the store
        """
        own = self._trees.setdefault(provider, [])
        own += trees
        random.shuffle(own)
        self.bounds = [{**bound, host_id: 0.0} for bound in self.bounds]

    def add_free(self, summaries: Mapping[str, Any]) -> None:
        """Add the free amounts of providers, as the service gives them."""
        for uuid, summary in summaries.items():
            for name, amounts in summary['resources'].items():
                free = amounts['capacity'] - amounts['used']
                self._free[uuid, name] = free

    def assign(self, assignments: Sequence[Assignment]) -> bool:
        """Give each assignment a candidate of its host, with room for all.

        :return: false where there is none for one; then its host is no longer
            among the bounds of this instance and the following ones
        """
        taken: Counter[tuple[str, str]] = Counter()
        for at, assignment in enumerate(assignments):
            placement, full = assignment.placement, assignment.host_id
            tree = self._next(placement.selected, taken)
            if tree is None:
                self.bounds = [
                    *self.bounds[:at],
                    *(
                        {i: v for i, v in bound.items() if i != full}
                        for bound in self.bounds[at:]
                    ),
                ]
                return False
            taken.update(_amounts_of(tree))
            placement.selected = with_tree(placement.selected, tree)
        for assignment in assignments:
            placement = assignment.placement
            placement.alternates = [
                with_tree(alternate, tree)
                for alternate in placement.alternates
                if (tree := self._next(alternate, taken)) is not None
            ]
        return True

    def _next(
        self, selected: Selection, taken: Counter[tuple[str, str]]
    ) -> Tree | None:
        """Return a candidate of a host that fits beside what is taken."""
        for tree in self._trees.get(selected.uuid, ()):
            if all(
                amount + taken[key] <= self._free.get(key, 0)
                for key, amount in _amounts_of(tree).items()
            ):
                return tree
        return None

    def drop(self, provider: str, tree: Tree) -> Tree | None:
        """Drop a candidate that has no room any more.

        :return: the next of the host; None: there is none
        """
        trees = [
            other for other in self._trees.get(provider, ()) if other != tree
        ]
        self._trees[provider] = trees
        return trees[0] if trees else None


def _amounts_of(tree: Tree) -> Counter[tuple[str, str]]:
    return Counter(
        {
            (uuid, name): amount
            for uuid, amounts in tree.allocations.items()
            for name, amount in amounts.items()
        }
    )


def by_row(
    table: HostTable, listed: Sequence[Mapping[str, Any]]
) -> dict[int, list[Tree]]:
    """Return candidates by the row of a host that gives a part of each."""
    rows: dict[str, int | None] = {}
    found: dict[int, list[Tree]] = {}
    for document in listed:
        tree = Tree.of(document)
        for uuid in tree.allocations:
            if uuid not in rows:
                matching = table.rows_with('uuid', uuid)
                rows[uuid] = int(matching[0]) if len(matching) else None
            row = rows[uuid]
            if row is not None:
                found.setdefault(row, []).append(tree)
    return found


def query_of(
    request: Request,
    tree: str = '',
    limit: int = 0,
    scope: Scope | None = None,
    without: str | None = None,
) -> str:
    """Return the query for the candidates of a request.

    :param tree: uuid of the provider whose tree has to give everything; the
        service then looks at no other provider. Empty: any host may
    :param limit: the most candidates; 0: all
    :param scope: further traits of hosts
    :param without: suffix of a group to leave out; empty: what is in no
        group; None: nothing
    """
    query = [('limit', str(limit))] if limit else []
    if request.own_resources and without != '':
        traits = _traits(*request.tree_traits)
        query.append(('resources', _amounts(request.own_resources)))
        query += [('required', traits)] if traits else []
        query += [('in_tree', tree)] if tree else []
    groups = [
        group for group in request.provider_groups if group.suffix != without
    ]
    for group in groups:
        query += _group(group, tree)
    if len(groups) > 1 or request.policy_of_groups:
        query.append(('group_policy', request.policy_of_groups or 'none'))
    if scope is not None:
        needed, unwanted = request.tree_traits
        traits = _traits(
            (request.required_traits - needed) | scope.required_traits,
            (request.forbidden_traits - unwanted) | scope.forbidden_traits,
        )
        query += [('root_required', traits)] if traits else []
    query += [
        ('same_subtree', ','.join(suffixes))
        for suffixes in request.same_subtree
        if without not in suffixes
    ]
    return urlencode(query)


def described(request: Request, suffix: str) -> str:
    """Return a group in words: its suffix, amounts and traits."""
    amounts, traits, name = request.own_resources, '', 'what is in no group'
    if not suffix:
        traits = _traits(*request.tree_traits)
    for group in request.provider_groups:
        if group.suffix == suffix:
            amounts, name = group.resources, f'group {suffix}'
            traits = _traits(group.required, group.forbidden)
    return f'{name} ({" ".join(filter(None, [_amounts(amounts), traits]))})'


def _group(group: ResourceGroup, provider: str) -> list[tuple[str, str]]:
    suffix = group.suffix
    query = []
    if group.resources:
        query.append((f'resources{suffix}', _amounts(group.resources)))
    traits = _traits(group.required, group.forbidden)
    if traits:
        query.append((f'required{suffix}', traits))
    query += [
        (f'member_of{suffix}', _any_of(aggregate.split(',')))
        for aggregate in group.aggregates
    ]
    if group.forbidden_aggregates:
        excluded = _any_of(group.forbidden_aggregates)
        query.append((f'member_of{suffix}', f'!{excluded}'))
    tree = group.in_tree or provider
    if tree:
        query.append((f'in_tree{suffix}', tree))
    return query


def _traits(required: Iterable[str], forbidden: Iterable[str]) -> str:
    return ','.join([*sorted(required), *sorted(f'!{n}' for n in forbidden)])


def _amounts(resources: Mapping[str, int]) -> str:
    return ','.join(
        f'{name}:{n}' for name, n in sorted(resources.items()) if n
    )


def _any_of(uuids: Sequence[str]) -> str:
    return f'in:{",".join(uuids)}'


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
