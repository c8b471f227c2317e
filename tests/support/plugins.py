"""Small inventories, and what one filter or weigher makes of them.

The tests of plug-ins use nothing else: they build an inventory document, and
read which hosts pass, why a host does not, or which raw weights hosts get.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

from scheduler_service import testing
from scheduler_service.model import documents
from scheduler_service.request_filters import Scope, ScopedRequest
from scheduler_service.settings import Settings
from scheduler_service.testing import check_keys, filter_results, table

GROUP = '22222222-0000-4000-8000-000000000001'


def uuid(number: int) -> str:
    """Return the uuid that tests give an instance by its number."""
    return f'11111111-0000-4000-8000-{number:012}'


def inventory(
    *,
    aggregates: tuple[dict[str, Any], ...] = (),
    instances: tuple[dict[str, Any], ...] = (),
    groups: tuple[dict[str, Any], ...] = (),
    **hosts: dict[str, Any],
) -> dict[str, Any]:
    """Return an inventory document.

    :param hosts: ``name={attribute: value}``
    """
    return {
        'hosts': [{'host': name, **fields} for name, fields in hosts.items()],
        'aggregates': [
            {'id': number, **fields}
            for number, fields in enumerate(aggregates, start=1)
        ],
        'instances': list(instances),
        'server_groups': list(groups),
    }


def plain_hosts(names: str, *aggregates: dict[str, Any]) -> dict[str, Any]:
    """Return an inventory of hosts without attributes, one for each letter."""
    return inventory(aggregates=aggregates, **{name: {} for name in names})


def aggregate(*hosts: str, **metadata: str) -> dict[str, Any]:
    """Return an aggregate; keys of metadata with a colon come by ``**``."""
    return {'hosts': list(hosts), 'metadata': metadata}


def instance(number: int, host: str, **fields: Any) -> dict[str, Any]:
    """Return an instance on a host."""
    return {'uuid': uuid(number), 'host': host, **fields}


def server_group(policy: str, *members: int, **fields: Any) -> dict[str, Any]:
    """Return the server group GROUP, its members by their numbers."""
    return {
        'uuid': GROUP,
        'policy': policy,
        'members': [uuid(number) for number in members],
        **fields,
    }


def passing(
    host_filter: Any,
    document: dict[str, Any],
    request: dict[str, Any] | None = None,
    **settings: Any,
) -> list[str]:
    """Return the hosts that pass, in the order of the inventory.

    :raises FilterFault: the filter raised an exception
    """
    results = filter_results(
        host_filter, document, request or {}, Settings(**settings)
    )
    names = dict.fromkeys(host['host'] for host in document['hosts'])
    return [name for name in names if results.get(name, True)]


def has_opinion(
    host_filter: Any,
    document: dict[str, Any],
    request: dict[str, Any] | None = None,
    **settings: Any,
) -> bool:
    """Say whether a filter looks at the hosts at all for a request."""
    arguments = (
        table(document),
        documents.request(request or {}).with_ids(),
        Settings(**settings),
    )
    has_mask = host_filter.mask(*arguments) is not None
    # A key of None promises that there is no mask.
    assert host_filter.mask_key(*arguments) is not None or not has_mask
    return has_mask


def reason(
    host_filter: Any,
    document: dict[str, Any],
    request: dict[str, Any] | None = None,
    *,
    host: str = 'a',
    **settings: Any,
) -> str:
    """Return why a host does not pass."""
    assert host not in passing(host_filter, document, request, **settings)
    hosts = table(document)
    row = int(hosts.rows_of_host(host)[0])
    parsed = documents.request(request or {}).with_ids()
    sentence: str = host_filter.reason(
        hosts, row, parsed, Settings(**settings)
    )
    return sentence


def raw_weights(
    weigher: Any,
    document: dict[str, Any],
    request: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, float] | None:
    """Return the raw weight of each host, None where it has no opinion."""
    values = Settings(**settings)
    check_keys(weigher, document, [request or {}], values)
    return testing.raw_weights(weigher, document, request or {}, values)


def scope_of(
    request_filter: Any,
    request: dict[str, Any] | None = None,
    *aggregates: dict[str, Any],
    **settings: Any,
) -> Scope:
    """Return what one request filter adds to an empty scope."""
    hosts = table(inventory(aggregates=aggregates, a={}))
    scope = Scope()
    request_filter(
        ScopedRequest(
            documents.request(request or {}).with_ids(),
            hosts.topology.aggregates,
            Settings(**settings),
            scope,
        )
    )
    return scope


def classes_by_module(package: Any, base: type) -> dict[str, list[str]]:
    """Return the plug-in classes that each module of a package defines.

    :param base: base class of the plug-ins; the module ``base`` and packages
        are left out
    """
    found = {}
    for info in pkgutil.iter_modules(package.__path__):
        if info.ispkg or info.name == 'base':
            continue
        module = importlib.import_module(f'{package.__name__}.{info.name}')
        found[info.name] = [
            name
            for name, kind in inspect.getmembers(module, inspect.isclass)
            if issubclass(kind, base)
            and kind.__module__ == module.__name__
            and not inspect.isabstract(kind)
        ]
    return found
