"""Whether the key of a filter or weigher says all that it depends on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from scheduler_service.columns import HostTable
from scheduler_service.columns.topology import EACH_TIME
from scheduler_service.filters.base import HostFilter
from scheduler_service.model import Request, documents
from scheduler_service.settings import Settings
from scheduler_service.testing.builders import table
from scheduler_service.weighers import Weigher


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
    first_with: dict[Hashable, tuple[Mapping[str, Any], Any]] = {}
    for document in requests:
        request = documents.request(dict(document)).with_ids()
        key, result = key_and_result(
            plugin, hosts, request, settings or Settings()
        )
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


def key_and_result(
    plugin: HostFilter | Weigher,
    hosts: HostTable,
    request: Request,
    settings: Settings,
) -> tuple[Hashable, list[Any] | None]:
    """Return the key of a plug-in, and its mask or raw weights by row.

    The result is None where every host passes or there is no opinion.
    """
    if isinstance(plugin, Weigher):
        weights = plugin.weigh(hosts, slice(None), request, settings)
        key = plugin.weight_key(hosts, request, settings)
        return key, None if weights is None else weights.tolist()
    mask = plugin.mask(hosts, request, settings)
    key = plugin.mask_key(hosts, request, settings)
    return key, None if mask is None or mask.all() else mask.tolist()
