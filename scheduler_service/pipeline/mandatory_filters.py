"""The filters that always run: which hosts are candidates at all.

They have lower-case names, and check the destination, ignored and forced
hosts, aggregates and traits; for capacity see ``capacity_check``.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Sequence

import numpy as np

from scheduler_service import time_slice
from scheduler_service.columns.dictionary import (
    Ints,
    Mask,
    Rows,
    combinations,
)
from scheduler_service.columns.table import HostTable, decoded
from scheduler_service.filters import host_attributes
from scheduler_service.filters.base import (
    Comparison,
    HostFilter,
    KeyFilter,
    RowFilter,
    RowSet,
)
from scheduler_service.filters.hosts.aggregate_filter import (
    AvailabilityZoneFilter,
)
from scheduler_service.filters.hosts.compute_filter import ComputeFilter
from scheduler_service.filters.hosts.numa_topology_filter import (
    NUMATopologyFilter,
)
from scheduler_service.filters.hosts.pci_passthrough_filter import (
    PciPassthroughFilter,
)
from scheduler_service.filters.numa_placement import (
    HostReports,
    Needs,
    interned,
    with_instance,
)
from scheduler_service.model import Request
from scheduler_service.model.request import HOST_CLASSES
from scheduler_service.request_filters import Scope, scope_of
from scheduler_service.settings import Settings


class NamedHosts(RowFilter, abc.ABC):
    """Base of filters by hosts that the request names, for whatever it is."""

    mandatory = True
    once = True
    rebuild = True


class RequestedDestination(NamedHosts):
    """Leaves the host, node or cell that the caller requires."""

    name = 'requested_destination'
    why = 'another host, node or cell is requested'

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        destination = request.requested_destination
        if destination is None:
            return None
        if destination.node:
            rows = table.rows_with('node', destination.node)
            if destination.host:
                hosts = table.rows_of_host(destination.host)
                rows = np.intersect1d(rows, hosts)
            return RowSet(rows, passes=True)
        if destination.host:
            return RowSet(table.rows_of_host(destination.host), passes=True)
        if destination.cell and not destination.allow_cross_cell_move:
            cell = table.rows_with('cell_uuid', destination.cell)
            return RowSet(cell, passes=True)
        return None


class IgnoreHosts(NamedHosts):
    """Leaves out the hosts that the caller or the engine ignores.

    Service hosts in any case, and nodes with their exact names. The engine
    ignores hosts that the instances move away from, or that refused them.
    """

    name = 'ignore_hosts'
    why = 'the request ignores this host'

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        if not request.ignore_hosts and not request.ignore_nodes:
            return None
        rows = rows_in_any_case(table, request.ignored)
        if request.ignore_nodes:
            nodes = table.rows_of_nodes(request.ignore_nodes)
            rows = np.union1d(rows, nodes)
        return RowSet(rows, passes=False)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        return request.why_ignored.get(table.host_at(row).lower(), self.why)


class ForceHosts(NamedHosts):
    """Leaves the hosts (any case) and nodes (exact) that are forced."""

    name = 'force_hosts'
    why = 'other hosts or nodes are forced'

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        if not request.forced:
            return None
        forced: list[Rows] = []
        if request.force_hosts:
            lower = {name.lower() for name in request.force_hosts}
            forced.append(rows_in_any_case(table, lower))
        if request.force_nodes:
            nodes = [
                table.rows_with('node', name) for name in request.force_nodes
            ]
            forced.append(np.unique(np.concatenate(nodes)))
        rows = forced[0]
        if len(forced) > 1:
            rows = np.intersect1d(rows, forced[1])
        return RowSet(rows, passes=True)


class AvailabilityZone(AvailabilityZoneFilter):
    """Leaves hosts in the requested zone, also where they are forced.

    Where AvailabilityZoneFilter is enabled, it does so for all other requests.
    """

    name = 'availability_zone'
    mandatory = True


class Enabled(ComputeFilter):
    """Leaves enabled hosts, where they are forced; they may be down.

    The trait ``COMPUTE_STATUS_DISABLED``, which services that are disabled
    while they are down do not set, has the same effect.
    """

    name = 'enabled'
    mandatory = True

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        return (Comparison(table.number('enabled'), np.equal, True),)


# The uuids of aggregates of which a host needs one each, and those that it
# must not be in.
_Uuids = tuple[tuple[frozenset[str], ...], frozenset[str]]
# Traits that are required and forbidden of a host, and that it or a provider
# below has to have.
_TraitSets = tuple[frozenset[str], frozenset[str], frozenset[str]]
# How many aggregates a reason names at most.
_MOST_NAMED = 5


class Aggregates(KeyFilter):
    """Leaves hosts in the aggregates that request filters narrowed to."""

    name = 'aggregates'
    mandatory = True
    by_name = True
    once = True

    def passing(self, table: HostTable, key: _Uuids) -> Mask:
        required, forbidden = key
        every = table.topology.aggregates

        def verdict(ids: frozenset[int]) -> bool:
            own = {every[aggregate_id].uuid for aggregate_id in ids}
            return not own & forbidden and all(
                own & uuids for uuids in required
            )

        return table.by_aggregate_ids(verdict)

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> _Uuids | None:
        scope = scope_of(request, table.topology.aggregates, settings)
        required = tuple(scope.required_aggregates)
        key = required, scope.forbidden_aggregates
        return key if any(key) else None

    def failure(self, table: HostTable, row: int, key: _Uuids) -> str:
        required, forbidden = key
        every = table.topology.aggregates
        own = [every[at] for at in table.coded['aggregate_set'].at(row)]
        for aggregate in own:
            if aggregate.uuid in forbidden:
                return (
                    f'the host is in aggregate {aggregate.name} '
                    f'({aggregate.uuid}), which the request must not use'
                )
        uuids = {aggregate.uuid for aggregate in own}
        missed = [each for each in required if not each & uuids]
        query = Scope(required_aggregates=missed).query(_MOST_NAMED)
        return f'the host is not in {query}'


class Traits(KeyFilter):
    """Leaves hosts with every required and no forbidden trait.

    The traits of flavor and image, and those that request filters add. Where
    a provider below the host's own may give a part of the instance, that
    provider may have the required traits as well.
    """

    name = 'traits'
    mandatory = True
    by_name = True
    once = True

    def passing(self, table: HostTable, key: _TraitSets) -> Mask:
        required, forbidden, anywhere = key

        def verdict(have: frozenset[str]) -> bool:
            return required <= have and not forbidden & have

        own = table.coded['trait_set']
        mask = own.mask_where(verdict)
        if anywhere:
            below = decoded(table, 'child_traits')
            (roots, children), combination = combinations([own, below])
            mask &= np.array(
                [
                    anywhere
                    <= own.values[root] | {*(below.values[child] or ())}
                    for root, child in zip(
                        roots.tolist(), children.tolist(), strict=True
                    )
                ],
                np.bool_,
            ).take(combination)
        return mask

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> _TraitSets:
        scope = scope_of(request, table.topology.aggregates, settings)
        anywhere, _ = request.tree_traits
        known = {
            name for name in request.known_traits if _is_known(table, name)
        }
        return (
            (request.required_traits - anywhere)
            | scope.required_traits
            | known,
            request.forbidden_traits | scope.forbidden_traits,
            anywhere.union(
                *(
                    group.required
                    for group in request.provider_groups
                    if not group.resources.keys() <= HOST_CLASSES
                )
            ),
        )

    def failure(self, table: HostTable, row: int, key: _TraitSets) -> str:
        required, forbidden, anywhere = key
        have = table.coded['trait_set'].at(row)
        below = decoded(table, 'child_traits').at(row) or ()
        missing = (required - have) | (anywhere - have).difference(below)
        lacks = [f'lacks {name}' for name in sorted(missing)]
        return '; '.join(
            lacks
            + [f'has the forbidden {n}' for n in sorted(forbidden & have)]
        )


def _is_known(table: HostTable, trait: str) -> bool:
    """Whether some host reports a trait of the same family."""
    family = trait[: trait.rindex('_') + 1]
    mask = table.topology.keep(
        ('family of traits', family),
        lambda: table.coded['trait_set'].mask_where(
            lambda have: any(name.startswith(family) for name in have)
        ),
    )
    return bool(mask.any())


def rows_in_any_case(table: HostTable, lower: Collection[str]) -> Rows:
    """Return the rows of service hosts whose names are given in lower case."""
    by_lower = table.lower_hosts()
    names = [host for name in lower for host in by_lower.get(name, ())]
    return table.rows_of_hosts(names)


def has_node(table: HostTable, host: str | None, node: str | None) -> bool:
    """Say whether a service host, a node, or a node of a host exists.

    :param host: in any case; None: of any service host
    :param node: exact; None: any node
    """
    rows = rows_in_any_case(table, [host.lower()]) if host else None
    if node:
        nodes = table.rows_with('node', node)
        rows = nodes if rows is None else np.intersect1d(rows, nodes)
    return rows is None or len(rows) > 0


# Of all hosts; a request has fewer instances.
_NOTHING_KNOWN = [[0], [np.iinfo(np.int16).max]]


class EarlierInstances(RowFilter):
    """Rejects hosts that earlier instances of the request fill.

    Their NUMA cells, pages and PCI devices count, which only hosts count, once
    they build the instances.

    :param filters: the configured filters; NUMA cells and devices count only
        with the filter that checks them
    """

    name = 'earlier_instances'
    mandatory = True
    by_name = False

    def __init__(self, filters: Sequence[HostFilter]) -> None:
        self._cells = any(
            isinstance(each, NUMATopologyFilter) for each in filters
        )
        self._devices = any(
            isinstance(each, PciPassthroughFilter) for each in filters
        )

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        """Return the hosts that are full.

        :raises TimeSliceOver: call it again; hosts that are known are kept
        """
        if not table.builds:
            return None
        needs = self._needs(request, settings)
        if needs is None:
            return None
        rows, counts = np.unique(table.builds, return_counts=True)
        counts += 1
        # How many instances are known to fit each host, and how many not to.
        # Most are known: the filter runs for each instance of a request.
        most, fewest = table.topology.keep(
            (self.name, needs),
            lambda: np.full((2, len(table)), _NOTHING_KNOWN, np.int16),
        )
        unknown = (most[rows] < counts) & (counts < fewest[rows])
        for turn, at in enumerate(np.flatnonzero(unknown).tolist()):
            if turn:
                time_slice.check()
            row, count = rows.item(at), counts.item(at)
            if _fits(table, row, needs, count, settings):
                most[row] = count
            else:
                fewest[row] = count
        return RowSet(rows[counts >= fewest[rows]], passes=False)

    def _needs(self, request: Request, settings: Settings) -> Needs | None:
        """Return what counts of an instance; None: nothing."""
        guest = request.guest if self._cells else None
        devices = request.devices(settings) if self._devices or guest else ()
        if not guest and not devices:
            return None
        return interned(Needs(guest, devices))

    def rooms(
        self,
        table: HostTable,
        request: Request,
        settings: Settings,
        rows: Rows,
        placed: Ints,
        most: Ints,
    ) -> dict[str, Ints]:
        """Return how many more instances NUMA cells and devices take.

        :param rows: of hosts, int64[m]
        :param placed: how many instances there have taken theirs, int64[m]
        :param most: where to stop to count, int64[m]
        :return: the filter that checks them -> int64[m]; empty: none does
        """
        needs = self._needs(request, settings)
        if needs is None:
            return {}
        # Of equal hosts the instances are placed once.
        first: dict[HostReports, tuple[int, HostReports | None]] = {}
        fitting = np.zeros_like(most)
        for at in np.argsort(placed + most).tolist():
            reports = _reports(table, rows[at], settings)
            count, now = first.get(reports, (-1, reports))
            while now is not None and count < placed[at] + most[at]:
                count, now = count + 1, with_instance(now, needs)
            first[reports] = count, now
            fitting[at] = count
        checking = NUMATopologyFilter if needs.guest else PciPassthroughFilter
        return {checking.name: np.clip(fitting - placed, 0, most)}

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        count = (table.builds or []).count(row)
        return (
            f'the NUMA cells or PCI devices do not suffice for another '
            f'instance beside {count} of the same request'
        )


def _fits(
    table: HostTable, row: int, needs: Needs, count: int, settings: Settings
) -> bool:
    host: HostReports | None = _reports(table, row, settings)
    for _ in range(count):
        host = host and with_instance(host, needs)
    return host is not None


def _reports(table: HostTable, row: int, settings: Settings) -> HostReports:
    """Return what the host of a row reported."""
    return HostReports(
        table.coded['numa_topology'].at(row),
        table.coded['pci_device_pools'].at(row),
        *(
            host_attributes.ratios(table, name, settings).at(row)
            for name in ('cpu_allocation_ratio', 'ram_allocation_ratio')
        ),
    )


MANDATORY_FILTERS: tuple[HostFilter, ...] = (
    RequestedDestination(),
    IgnoreHosts(),
    ForceHosts(),
    Aggregates(),
    Traits(),
)
