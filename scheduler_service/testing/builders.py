"""Small tables from plain documents, and what a filter makes of them."""

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

    :raises InvalidInventory: with the place and what was expected there
    """
    parsed = documents.inventory(dict(inventory))
    return build_table(
        list(enumerate(parsed.hosts)),
        parsed.aggregates,
        [placed(one) for one in parsed.instances],
        parsed.server_groups,
    )


def verdicts(
    one: HostFilter,
    inventory: Mapping[str, Any],
    request: Mapping[str, Any],
    settings: Settings | None = None,
) -> dict[str, bool]:
    """Return what a filter says of each host, through the real pipeline.

    :raises FilterFault: the filter failed
    """
    hosts = table(inventory)
    asked = documents.request(dict(request)).with_ids()
    pipeline = HostPipeline(
        [one], [], settings or Settings(), check_room=False
    )
    for each, mask in pipeline.filter_results(hosts, asked):
        if each is one:
            return {
                hosts.host_at(row): bool(mask[row])
                for row in range(len(hosts))
            }
    return {}
