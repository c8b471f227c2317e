"""Host tables from plain documents, and what plug-ins make of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_service.columns import HostTable, build_table
from scheduler_service.columns.build import placed
from scheduler_service.filters.hosts import HostFilter
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.settings import Settings
from scheduler_service.weighers import Weigher


def table(inventory: Mapping[str, Any]) -> HostTable:
    """Return the host table of an inventory document.

    :raises InvalidInventory: names the place, and what was expected there
    """
    parsed = documents.inventory(dict(inventory))
    return build_table(
        list(enumerate(parsed.hosts)),
        parsed.aggregates,
        [placed(instance) for instance in parsed.instances],
        parsed.server_groups,
    )


def filter_results(
    host_filter: HostFilter,
    inventory: Mapping[str, Any],
    request: Mapping[str, Any],
    settings: Settings | None = None,
) -> dict[str, bool]:
    """Return whether each host passes a filter, as the pipeline runs it.

    :return: service host -> whether it passes; empty where the filter does
        not run for such a request, as with forced hosts
    :raises InvalidInventory, InvalidRequest: a document is not valid
    :raises FilterFault: the filter failed
    """
    hosts = table(inventory)
    parsed = documents.request(dict(request)).with_ids()
    pipeline = HostPipeline(
        [host_filter], [], settings or Settings(), check_room=False
    )
    for plugin, mask in pipeline.filter_results(hosts, parsed):
        if plugin is host_filter:
            return {
                hosts.host_at(row): bool(mask[row])
                for row in range(len(hosts))
            }
    return {}


def raw_weights(
    weigher: Weigher,
    inventory: Mapping[str, Any],
    request: Mapping[str, Any],
    settings: Settings | None = None,
) -> dict[str, float] | None:
    """Return the raw weight that a weigher gives each host.

    :return: service host -> raw weight; None where the weigher has no
        opinion on the request
    :raises InvalidInventory, InvalidRequest: a document is not valid
    """
    hosts = table(inventory)
    parsed = documents.request(dict(request)).with_ids()
    weights = weigher.weigh(hosts, slice(None), parsed, settings or Settings())
    if weights is None:
        return None
    names = [hosts.host_at(row) for row in range(len(hosts))]
    return dict(zip(names, weights.tolist(), strict=True))
