"""Queries the placement service for allocation candidates on one host.

Only requests that need more than amounts of the host's own provider need the
query: the service knows which of several providers below it fit. Stateless.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from scheduler_service.compute.placement.client import PLAIN, PlacementClient
from scheduler_service.model import Request
from scheduler_service.model.request import ResourceGroup


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


def is_needed(request: Request) -> bool:
    """Whether only the service can say how a request fits a host."""
    return bool(request.resource_groups) or not (
        request.own_resources.keys() <= PLAIN
    )


def find(
    client: PlacementClient,
    request: Request,
    provider: str,
    shared: Mapping[str, str],
) -> Tree | None:
    """Return allocations for a request; None where it does not fit.

    :param provider: uuid of the host's own provider
    :param shared: resource class -> uuid of the provider that gives it in
        place of the host's own; a sharing provider is in no tree of a host
    :raises PlacementUnavailable: the service does not answer
    """
    query = urlencode(_query(request, provider, shared))
    candidates = client.allocation_candidates(query)
    if not candidates:
        return None
    tree = Tree.of(candidates[0])
    for name, amount in request.own_resources.items():
        if name in shared:
            given = tree.allocations.setdefault(shared[name], {})
            given[name] = amount
            givers = tree.mappings.setdefault('', [])
            if shared[name] not in givers:
                givers.append(shared[name])
    return tree


def _query(
    request: Request, provider: str, shared: Collection[str]
) -> list[tuple[str, str]]:
    query = [('limit', '1')]
    own = {
        name: amount
        for name, amount in request.own_resources.items()
        if name not in shared
    }
    if own:
        query += [('resources', _amounts(own)), ('in_tree', provider)]
    for group in request.resource_groups:
        query += _group(group, '' if own else provider)
    if len(request.resource_groups) > 1 or request.group_policy:
        query.append(('group_policy', request.group_policy or 'none'))
    query += [
        ('same_subtree', ','.join(suffixes))
        for suffixes in request.same_subtree
    ]
    return query


def _group(group: ResourceGroup, provider: str) -> list[tuple[str, str]]:
    suffix = group.suffix
    query = []
    if group.resources:
        query.append((f'resources{suffix}', _amounts(group.resources)))
    traits = [*group.required, *(f'!{name}' for name in group.forbidden)]
    if traits:
        query.append((f'required{suffix}', ','.join(traits)))
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


def _amounts(resources: Mapping[str, int]) -> str:
    return ','.join(f'{name}:{n}' for name, n in sorted(resources.items()))


def _any_of(uuids: Sequence[str]) -> str:
    return f'in:{",".join(uuids)}'
