"""Builders for tests of plug-ins, in this tree and in others.

Host tables come from plain documents, as what plug-ins make of them. Nothing
is kept, so tests may use them in any thread.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from scheduler_service.columns import HostTable, build_table
from scheduler_service.columns.build import placed
from scheduler_service.columns.topology import EACH_TIME
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
    form = parsed.offered_form(hosts.resources)
    for plugin, mask in pipeline.filter_results(hosts, form):
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


def check_keys(
    plugin: HostFilter | Weigher,
    inventory: Mapping[str, Any],
    requests: Sequence[Mapping[str, Any]],
    settings: Settings | None = None,
) -> None:
    """Check that requests with equal keys have equal results.

    Checks, too, that a request without a key has no result: every host
    passes, or the weigher has no opinion.

    :raises AssertionError: names the requests and the results
    :raises InvalidInventory, InvalidRequest: a document is not valid
    """
    hosts = table(inventory)
    values = settings or Settings()
    first_with: dict[Hashable, tuple[Mapping[str, Any], Any]] = {}
    for document in requests:
        request = documents.request(dict(document)).with_ids()
        if isinstance(plugin, Weigher):
            key = plugin.weight_key(hosts, request, values)
            found: Any = plugin.weigh(hosts, slice(None), request, values)
        else:
            key = plugin.mask_key(hosts, request, values)
            found = plugin.mask(hosts, request, values)
            found = None if found is None or found.all() else found
        result = None if found is None else found.tolist()
        if key is EACH_TIME:
            continue
        if key is None:
            assert result is None, (
                f'{plugin.name}: {document} has no key, and the result '
                f'{result}'
            )
            continue
        other, other_result = first_with.setdefault(key, (document, result))
        assert result == other_result, (
            f'{plugin.name}: {other} and {document} have the same key, '
            f'{key!r}, and the results {other_result} and {result}'
        )
