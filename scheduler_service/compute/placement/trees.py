"""Claims of more than amounts of the host's own provider.

Only the placement service can say which providers below a host's own fit: a
query goes out for each instance, and for each alternate. Any thread may use
:class:`TreeClaims`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from scheduler_service.compute.placement import candidates
from scheduler_service.compute.placement.candidates import Tree
from scheduler_service.compute.placement.claims import (
    AllocationRequest,
    AllocationResult,
)
from scheduler_service.compute.placement.client import PlacementClient
from scheduler_service.compute.placement.journal import PlacementJournal
from scheduler_service.compute.placement.sharing import SharedProviders
from scheduler_service.compute.placement.undoing import PlacementUndoer
from scheduler_service.model import Placement, Request, Selection

# Another claim may take the proposed providers meanwhile.
_TRIES = 3


# Makes allocations; returns the results by instance.
Claim = Callable[
    [Sequence[AllocationRequest], PlacementJournal],
    dict[str, AllocationResult],
]


class TreeClaims:
    """Makes allocations of several providers, one instance at a time."""

    def __init__(
        self,
        client: PlacementClient,
        shared: SharedProviders,
        undoer: PlacementUndoer,
        claim: Claim,
    ) -> None:
        self._client = client
        self._shared = shared
        self._undoer = undoer
        self._claim = claim

    def make(
        self,
        allocation: AllocationRequest,
        request: Request,
        repeated: bool,
        journal: PlacementJournal,
    ) -> tuple[AllocationRequest, AllocationResult]:
        """Make allocations on the host of a claim.

        :param repeated: an earlier delivery may have made them
        :return: the request with its providers, and the result
        :raises PlacementUnavailable: some allocations may be made
        :raises StoreUnavailable: the database does not answer
        """
        intended = False
        before = journal.recorded(allocation)
        if before is not None and repeated:
            earlier = allocation._replace(
                tree=_tree(before.document, allocation)
            )
            journal.intend_patiently([earlier])
            intended = True
            result = self._claim([earlier], journal)[allocation.consumer]
            if result is not AllocationResult.NO_CAPACITY:
                return earlier, result
        elif before is not None:
            # The claim was released just now: its record goes after at most
            # two calls, if the call that made the allocations has ended.
            for _ in range(2):
                self._undoer.undo(before, held=True)
        result = AllocationResult.NO_CAPACITY
        for _ in range(_TRIES):
            tree = self._find(request, allocation.provider)
            if tree is None:
                break
            allocation = allocation._replace(tree=tree)
            if not intended:
                journal.intend_patiently([allocation])
                intended = True
            elif allocation.consumer in journal.unsure:
                # The record stays until the result of its call is clear.
                return allocation, AllocationResult.LEFT
            else:
                journal.replace(allocation)
            result = self._claim([allocation], journal)[allocation.consumer]
            if result is not AllocationResult.NO_CAPACITY:
                break
        return allocation, result

    def _find(self, request: Request, provider: str) -> Tree | None:
        shared = {
            name: share.uuid
            for name, share in self._shared.of(provider).items()
        }
        return candidates.find(self._client, request, provider, shared)

    def complete(
        self,
        placement: Placement,
        allocation: AllocationRequest,
        request: Request,
    ) -> None:
        """Put allocations into a placement; drop alternates that do not fit.

        :param allocation: made for the selected host
        :raises PlacementUnavailable: the service does not answer
        """
        placement.selected = with_tree(
            placement.selected, allocation.allocation_tree
        )
        trees = [
            (alternate, self._find(request, alternate.uuid))
            for alternate in placement.alternates
        ]
        placement.alternates = [
            with_tree(alternate, tree)
            for alternate, tree in trees
            if tree is not None
        ]


def with_tree(selected: Selection, tree: Tree | None) -> Selection:
    """Return a selection with the tree's allocations; None: without any."""
    if tree is None and selected.allocation is msgspec.UNSET:
        return selected
    allocation = msgspec.UNSET if tree is None else tree.document
    # A copy: selections are shared by the instances of a request.
    return msgspec.structs.replace(selected, allocation=allocation)


def tree_of(selected: Selection) -> Tree | None:
    """Return the tree of a selection; None: all is of its own provider."""
    allocation = selected.allocation
    return Tree.of(allocation) if isinstance(allocation, Mapping) else None


def _tree(document: Mapping[str, Any], allocation: AllocationRequest) -> Tree:
    """Return the recorded allocations of a claim."""
    if 'allocations' in document:
        return Tree.of(document)
    return allocation._replace(resources=document).allocation_tree
