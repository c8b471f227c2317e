"""Host tables from plain documents, and the hosts that pass a filter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_service.columns import HostTable, build_table
from scheduler_service.columns.build import placed
from scheduler_service.filters.hosts import HostFilter
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.settings import Settings


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

    :return: service host -> whether it passes; empty where the filter has
        nothing to say about the request
    :raises InvalidInventory, InvalidRequest: a document is not valid
    :raises FilterFault: the filter failed
    """
    hosts = table(inventory)
    parsed = documents.request(dict(request)).with_ids()
    pipeline = HostPipeline(
        [host_filter], [], settings or Settings(), check_room=False
    )
    for each, mask in pipeline.filter_results(hosts, parsed):
        if each is host_filter:
            return {
                hosts.host_at(row): bool(mask[row])
                for row in range(len(hosts))
            }
    return {}
