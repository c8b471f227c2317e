"""Claims of more than amounts of the host's own provider.

Which providers below a host's own give what, only the placement service
knows: it is asked for each instance, and for each alternate. Any thread may
use it.
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

# What the service proposes may be taken by another claim meanwhile.
_TRIES = 3


# Makes allocations; returns what became of each instance's.
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
        wanted: AllocationRequest,
        request: Request,
        repeated: bool,
        journal: PlacementJournal,
    ) -> tuple[AllocationRequest, AllocationResult]:
        """Make allocations on the host of a claim.

        :param repeated: they may be made from an earlier delivery
        :return: what is wanted, with the providers; and what became of it
        :raises PlacementUnavailable: some may be made
        :raises StoreUnavailable: the database does not answer
        """
        intended = False
        before = journal.recorded(wanted)
        if before is not None and repeated:
            earlier = wanted._replace(tree=_tree(before.document, wanted))
            journal.intend_patiently([earlier], fresh=False)
            intended = True
            outcome = self._claim([earlier], journal)[wanted.consumer]
            if outcome is not AllocationResult.NO_CAPACITY:
                return earlier, outcome
        elif before is not None:
            # Of a claim that was released just now: it is forgotten after
            # two looks at the latest, if its call has ended.
            for _ in range(2):
                self._undoer.undo(before, held=True)
        outcome = AllocationResult.NO_CAPACITY
        for _ in range(_TRIES):
            tree = self._find(request, wanted.provider)
            if tree is None:
                break
            wanted = wanted._replace(tree=tree)
            if not intended:
                journal.intend_patiently([wanted], fresh=before is None)
                intended = True
            elif wanted.consumer in journal.unsure:
                # The record has to stay until it is known what was made.
                return wanted, AllocationResult.LEFT
            else:
                journal.replace(wanted)
            outcome = self._claim([wanted], journal)[wanted.consumer]
            if outcome is not AllocationResult.NO_CAPACITY:
                break
        return wanted, outcome

    def _find(self, request: Request, provider: str) -> Tree | None:
        shared = {
            name: one.uuid for name, one in self._shared.of(provider).items()
        }
        return candidates.find(self._client, request, provider, shared)

    def complete(
        self, placement: Placement, wanted: AllocationRequest, request: Request
    ) -> None:
        """Put allocations into a placement; drop alternates without any.

        :param wanted: what was made for the selected host
        :raises PlacementUnavailable: the service does not answer
        """
        placement.selected = with_tree(
            placement.selected, wanted.allocation_tree
        )
        found = [
            (alternate, self._find(request, alternate.uuid))
            for alternate in placement.alternates
        ]
        placement.alternates = [
            with_tree(one, tree) for one, tree in found if tree is not None
        ]


def with_tree(selected: Selection, tree: Tree | None) -> Selection:
    """Return a selection with allocations; without, where there is no tree."""
    if tree is None and selected.allocation is msgspec.UNSET:
        return selected
    allocation = msgspec.UNSET if tree is None else tree.document
    # A copy: selections are shared by the instances of a request.
    return msgspec.structs.replace(selected, allocation=allocation)


def _tree(document: Mapping[str, Any], wanted: AllocationRequest) -> Tree:
    """Return what is recorded of a claim."""
    if 'allocations' in document:
        return Tree.of(document)
    return wanted._replace(resources=document).allocation_tree
