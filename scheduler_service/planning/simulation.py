"""Requests that are decided again, on a table of their own.

The table is as a store has it, but for the instances of these requests: they
are where the simulation puts them, not where they really are.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from scheduler_service import errors, texts
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.columns.build import build_table
from scheduler_service.columns.changes import Release, Update
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.model import Request
from scheduler_service.pipeline import Bonuses, HostPipeline
from scheduler_service.pipeline.explain import decisive_filter
from scheduler_service.pipeline.weighing import RandomSource
from scheduler_service.planning.headroom import size

# The number of instances, among amounts of resource classes.
_COUNT = ''
_encode = msgspec.json.Encoder().encode
# Service host and node.
Node = tuple[str, str]


class _Instance(NamedTuple):
    """An instance of a request that was decided.

    :ivar number: of the decision
    :ivar real: where it really is; None: nowhere
    :ivar own: where the simulation put it; None: nowhere
    """

    number: int
    amounts: Mapping[str, int]
    real: Node | None
    own: Node | None = None


class SimulatedDecision(NamedTuple):
    """What became of a request.

    :ivar hosts: store ids, in the order of its instances; empty: refused
    :ivar refused_by: the filter that left no host, or the name of an error
    """

    request_id: str | None
    hosts: Sequence[int]
    refused_by: str


class Simulation:
    """Decides requests one after the other.

    It is told in its order what else happened; first a table, by
    :meth:`go_on`.

    :param rng: draws where a configuration has that
    :ivar decisions: by number; None: the request was asked again later
    """

    def __init__(self, rng: RandomSource) -> None:
        self._overlay, self._rng = Overlay(build_table([])), rng
        self.decisions: list[SimulatedDecision | None] = []
        self._pipeline: HostPipeline
        self._instances: dict[str, _Instance] = {}
        # Store id of a host, or provider -> by how much more it is used here.
        self._more: dict[int, dict[str, int]] = {}
        # A request for each flavor, by its text.
        self._flavors: dict[bytes, Request] = {}

    @property
    def table(self) -> HostTable:
        """The hosts as they are in the simulation."""
        return self._overlay.table

    def is_present(self, uuid: str) -> bool:
        """Whether an instance really is on a host."""
        instance = self._instances.get(uuid)
        placed = self.table.instances.get(uuid)
        if instance is None:
            return placed is not None
        return instance.real is not None

    def arrive(self, request: Request, real: Mapping[str, Node]) -> None:
        """Have a request come; :meth:`decide` is called next for it.

        :param real: where its instances really got; empty: it was refused
        """
        for uuid in request.instance_uuids:
            if (before := self._instances.get(uuid)) is not None:
                self.decisions[before.number] = None
                self.follow(uuid)
            instance = _Instance(-1, request.resources, real.get(uuid))
            self._instances[uuid] = instance
            self._note(self._row(instance.real), instance.amounts, -1)

    def decide(
        self,
        pipeline: HostPipeline,
        request: Request,
        bounds: Bonuses | None = None,
    ) -> None:
        """Select hosts for a request that came, and place its instances.

        :param bounds: the hosts that extenders and candidates left
        """
        self._pipeline = pipeline
        number, overlay, table = len(self.decisions), self._overlay, self.table
        rows, refused_by = [], ''
        try:
            pipeline.check_devices(request)
            made = pipeline.select(overlay, request, self._rng, 1, bounds)
            rows = [each.row for each in made.assignments]
        except errors.SchedulerError as error:
            refused_by = decisive_filter(error.facts) or error.name
        overlay.commit()
        for at, uuid in enumerate(request.instance_uuids):
            instance = self._instances[uuid]._replace(number=number)
            if rows:
                own = table.host_at(rows[at]), table.node_at(rows[at])
                self._note(rows[at], instance.amounts, 1)
                instance = instance._replace(own=own)
            self._instances[uuid] = instance
        hosts = [table.ids.item(row) for row in rows]
        self.decisions.append(
            SimulatedDecision(request.request_id, hosts, refused_by)
        )
        self._flavors.setdefault(
            _encode((request.flavor, request.amounts)), request
        )

    def update(self, update: Update) -> None:
        """Apply what was read from the store."""
        there = []
        for placed in update.instances:
            instance = self._instances.get(placed.uuid)
            if instance and _is_at(placed, instance.real):
                # It stays where the simulation has it.
                if instance.own is not None:
                    host, node = instance.own
                    there.append(placed._replace(host=host, node=node))
            else:
                # Moves are not decided again.
                self.follow(placed.uuid)
                there.append(placed)
        for uuid in update.instances_gone:
            self.follow(uuid)
        changed = msgspec.structs.replace(update, instances=there)
        self._overlay.table = changed.apply(self.table)
        numbers = {*update.loaded, *(number for number, _ in update.hosts)}
        numbers.update(provider for provider, *_ in update.shared)
        if update.aggregates is not None:
            numbers.update(number for number in self._more if number < 0)
        self._count_more(numbers)

    def release(self, release: Release) -> None:
        """Apply claims that were released."""
        for uuid, host, *_ in release.claims:
            if host is not None:
                self.follow(uuid)
        release.apply(self.table)

    def place_pod(self, row: int, amounts: Mapping[str, int]) -> None:
        """Have a pod take amounts of the host of a row, as it really did."""
        self._overlay.assume_pod(row, amounts)
        self._overlay.commit()

    def follow(self, uuid: str) -> None:
        """Have an instance be where it really is, if it was decided on."""
        instance = self._instances.pop(uuid, None)
        if instance is not None:
            self._shift(uuid, instance, instance.real, -1)

    def go_on(self, table: HostTable) -> None:
        """Go on with the table of a store, with our instances as they were.

        :param table: is written to
        """
        instances = self._instances
        self._overlay, self._more, self._instances = Overlay(table), {}, {}
        for uuid, each in instances.items():
            placed = table.instances.get(uuid)
            if each.real is None or (placed and _is_at(placed, each.real)):
                self._instances[uuid] = each
                self._shift(uuid, each, each.own, 1)

    def _shift(
        self, uuid: str, instance: _Instance, to: Node | None, sign: int
    ) -> None:
        """Move an instance from its real place to ours (*sign* 1), or back."""
        for node, count in ((instance.own, sign), (instance.real, -sign)):
            row = self._row(node)
            if row is not None:
                self._note(row, instance.amounts, count)
                self._overlay.take(row, instance.amounts, count)
        placed = self.table.instances.get(uuid) or PlacedInstance(uuid, '', '')
        Update(
            instances=[placed._replace(host=to[0], node=to[1])] if to else [],
            instances_gone=[] if to else [uuid],
        ).apply(self.table)

    def _row(self, node: Node | None) -> int | None:
        return None if node is None else self.table.row_of_node(*node)

    def _note(
        self, row: int | None, amounts: Mapping[str, int], sign: int
    ) -> None:
        """Note that an instance counts here, and not in the store; or less."""
        if row is None:
            return
        own, at = self.table.ids.item(row), self.table.providers(row, amounts)
        for name, amount in (*amounts.items(), (_COUNT, 1)):
            more = self._more.setdefault(at.get(name, own), {})
            more[name] = more.get(name, 0) + sign * amount

    def _count_more(self, numbers: Iterable[int]) -> None:
        """Count our instances where the store's figures were written."""
        for number in self._more.keys() & numbers:
            amounts = {**self._more[number]}
            count = amounts.pop(_COUNT, 0)
            row = self.table.row_of_id(number)
            for name in amounts if number < 0 else ():
                for given in self.table.rows_of_provider(number, name)[:1]:
                    row = int(given)
            if row is not None and (count or any(amounts.values())):
                self._overlay.take(row, amounts, 1)
                self._overlay.take(row, {}, count - 1)

    def figures(self) -> dict[str, Any]:
        """Return what became of the requests, and what is left on the hosts.

        Filters are those of the last decision.

        :return: ``unusable``: by resource class, the share of what is free
            that is on hosts where no flavor fits that was asked for
        """
        table = self.table
        made = [each for each in self.decisions if each is not None]
        refused = collections.Counter(
            each.refused_by for each in made if not each.hosts
        )
        flavors = [
            Request(flavor=each.flavor, amounts=each.amounts).with_ids(
                'flavor'
            )
            for each in self._flavors.values()
        ]
        fits, largest = np.zeros(len(table), np.bool_), None
        for request in sorted(flavors, key=size, reverse=True):
            for _, mask in self._pipeline.masks(table, request):
                if largest is None and mask.any():
                    largest = request.flavor.name or texts.cell(
                        request.resources
                    )
                fits |= mask
        is_open = table.numbers['enabled'] & table.numbers['up']
        unusable = {}
        for name in sorted(
            {name for each in flavors for name in each.resources}
        ):
            if name in table.resources and name not in table.shared:
                columns = table.resources[name]
                settings = self._pipeline.settings
                room = table.capacity(name, settings) - columns.used
                room = np.where(is_open & (columns.total >= 0), room, 0)
                room = np.maximum(room, 0)
                if room.any():
                    unusable[name] = float(room[~fits].sum() / room.sum())
        return {
            'requests': len(made),
            'placed': len(made) - refused.total(),
            'refused_by': dict(refused.most_common()),
            'hosts_used': int(
                np.count_nonzero(table.numbers['num_instances'])
            ),
            'unusable': unusable,
            'largest_that_fits': largest,
        }


def _is_at(placed: PlacedInstance, node: Node | None) -> bool:
    """Whether an instance is on a node, and stays there."""
    return placed.hosts == (placed.host,) and node == (
        placed.host,
        placed.node,
    )
