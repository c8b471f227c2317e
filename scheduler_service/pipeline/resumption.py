"""Go on with a request whose turn was over: assume again what it was given.

Between two turns of a request nothing is assumed for it, so others may have
taken what it was given, and hosts may have changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from scheduler_service import turns
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.model import Request
from scheduler_service.pipeline.filtering import Passed
from scheduler_service.pipeline.selection import Assignment


class _Filters(Protocol):
    """What says which hosts pass; the pipeline."""

    def filter_hosts(self, table: HostTable, request: Request) -> Passed:
        """Return the hosts that pass every filter."""


def resume(
    filters: _Filters,
    overlay: Overlay,
    request: Request,
    placed: dict[str, Assignment],
) -> None:
    """Assume instances where they were placed; drop those that do not fit.

    A host is asked about as it is with all that the request puts there, but
    for one instance: where the last one fits, those before it did, too.

    :param overlay: in a transaction, with nothing assumed for the request
    :param placed: instance -> its place; loses those that do not fit
    """
    by_row = _by_row(overlay.table, request, placed)
    while by_row:
        earlier = [one for some in by_row.values() for one in some[:-1]]
        _assume(overlay, request, earlier)
        mask = filters.filter_hosts(overlay.table, request).mask
        full = [row for row in by_row if not mask[row]]
        if not full:
            last = [some[-1] for some in by_row.values()]
            _assume(overlay, request, last)
            turns.renew()
            return
        overlay.forget_last(len(earlier))
        for row in full:
            for one in by_row.pop(row):
                del placed[one.uuid]


def _by_row(
    table: HostTable, request: Request, placed: dict[str, Assignment]
) -> dict[int, list[Assignment]]:
    """Return what was placed by the row that its host has now.

    What is not asked for any more, or is on a host that is gone, is dropped;
    so is one instance where none would be left to place.
    """
    wanted = set(request.instance_uuids)
    ids = np.array([one.host_id for one in placed.values()], np.int64)
    rows = np.searchsorted(table.ids, ids)
    there = np.isin(ids, table.ids).tolist()
    for (uuid, one), row, known in zip(
        list(placed.items()), rows.tolist(), there, strict=True
    ):
        one.row = row
        if not known or uuid not in wanted:
            del placed[uuid]
    if len(placed) == len(wanted):
        placed.popitem()
    by_row: dict[int, list[Assignment]] = {}
    for one in placed.values():
        by_row.setdefault(one.row, []).append(one)
    return by_row


def _assume(
    overlay: Overlay, request: Request, assignments: Sequence[Assignment]
) -> None:
    if assignments:
        overlay.assume_many(
            [one.row for one in assignments],
            assignments[0].amounts,
            [one.placed for one in assignments],
            request.instance_group,
        )
