"""The stage *select* of pods, whose host a cluster's scheduler has chosen.

It belongs to the engine's thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_service import errors
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.engine.jobs import HostJob, PodJob, State
from scheduler_service.engine.journal import PodPlaced
from scheduler_service.engine.ports import Parts, Stage
from scheduler_service.filters.capacity import used_of_aggregate
from scheduler_service.model import Placement, Selection
from scheduler_service.pipeline import Assignment, ScheduleResult


class PlacePod(Stage):
    """Puts pods on their hosts, unless they are claimed there already.

    :ivar overlay: of the batch; what is placed for a claim stays assumed
    """

    name = 'select'
    kinds = ('pod',)

    def __init__(self, parts: Parts) -> None:
        self._claimer, self._journal = parts.claimer, parts.journal
        self.overlay: Overlay

    def run(self, jobs: Sequence[HostJob], table: HostTable) -> None:
        """Place pods; those that another try has claimed are CLAIMED.

        :raises Conflict: a pod is claimed on another host, or has the uuid of
            an instance
        :raises NoValidHost: it does not fit, or there is no such host
        """
        for job in jobs:
            assert isinstance(job, PodJob)
            if self._recall(job):
                job.state = State.CLAIMED
                continue
            made = _placed(job, self.overlay.table)
            placed = PodPlaced(made.uuid, made.row, made.amounts)
            self._journal.apply(placed, self.overlay)
            attempt = job.attempt
            attempt.selection = ScheduleResult([made], {})
            attempt.table, job.state = table, State.SELECTED
            attempt.placements = [made.placement]

    def _recall(self, job: PodJob) -> bool:
        """Find the claim that a pod has, once another one is refused."""
        self._claimer.recall(job)
        attempt = job.attempt
        attempt.request = job.request
        if not job.attempts:
            return False
        held = self._claimer.find(job.request.instance_uuids, False, job.kind)
        for placement in held.values():
            selected = placement.selected
            if (selected.host, selected.node) != (job.host, job.node):
                raise errors.Conflict(
                    f'The pod is claimed on {selected.node} already'
                )
            attempt.placements, attempt.held = [placement], held
        return bool(held)


def _placed(job: PodJob, table: HostTable) -> Assignment:
    """Return a pod's place on its host, which it may not overcommit."""
    host, node, amounts = job.host, job.node, job.request.resources
    row = table.row_of_node(host, node)
    if row is None:
        raise errors.NoValidHost(f'{node} is not kept as a host')
    for name, amount in amounts.items():
        columns, size, free = table.resources.get(name), 0, 0
        if columns is not None:
            size = int(columns.total[row] - columns.reserved[row])
            free = size - int(columns.used[row])
        if amount > free:
            left = used_of_aggregate(table, row, name, size, free)
            left = left or f'{max(0, free)} free'
            raise errors.NoValidHost(
                f'{node}: free_resources: {amount} {name} requested, {left}'
            )
    uid = job.request.instance_uuids[0]
    selected = Selection(
        host=host, node=node, uuid=table.coded['uuid'].at(row)
    )
    return Assignment(
        uuid=uid,
        row=row,
        host_id=table.ids.item(row),
        amounts=amounts,
        ratios=dict.fromkeys(amounts, 1.0),
        placement=Placement(instance_uuid=uid, selected=selected),
        placed=PlacedInstance(uid, host, node),
    )
