"""Queries the placement service for allocation candidates on one host.

Only requests that need more than amounts of the host's own provider need the
query: the service knows which of several providers below it fit. Stateless.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    own = {
        name: amount
        for name, amount in request.own_resources.items()
        if name not in shared
    }
    query = query_of(request, tree=provider, own=own, limit=1)
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


def query_of(
    request: Request,
    tree: str = '',
    own: Mapping[str, int] | None = None,
    limit: int = 0,
) -> str:
    """Return the query for the candidates of a request.

    :param tree: uuid of the host's own provider; empty: of any host
    :param own: what is in no group; None: all of it
    :param limit: the most candidates; 0: all
    """
    query = [('limit', str(limit))] if limit else []
    own = request.own_resources if own is None else own
    if own:
        traits = _traits(*request.tree_traits)
        query.append(('resources', _amounts(own)))
        query += [('required', traits)] if traits else []
        query += [('in_tree', tree)] if tree else []
    for group in request.resource_groups:
        query += _group(group, tree)
    if len(request.resource_groups) > 1 or request.group_policy:
        query.append(('group_policy', request.group_policy or 'none'))
    query += [
        ('same_subtree', ','.join(suffixes))
        for suffixes in request.same_subtree
    ]
    return urlencode(query)


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
