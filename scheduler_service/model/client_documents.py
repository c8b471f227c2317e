"""Translates what clients of other services print into our documents.

``openstack hypervisor``, ``aggregate`` and ``flavor show -f json``, and the
file of pools of a DNS service. Anything else stays as it is. Stateless.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from scheduler_service import errors

_NAMESPACE = uuid.UUID('2b0f8a35-3f1c-5b7e-9c34-8e5d1f60a7d2')
_SIZES = ('vcpus', 'memory_mb', 'local_gb')
_DIGITS = re.compile('[0-9]{1,18}')
_NUMBERS = ('vcpus', 'memory_mb', 'root_gb', 'ephemeral_gb', 'swap')
# Field of a host -> the field that a client prints.
_HOST = {
    'host': 'service_host',
    'num_instances': 'running_vms',
    **{
        name: name
        for name in (
            *_SIZES, 'hypervisor_hostname', 'status', 'state', 'host_ip',
            'vcpus_used', 'memory_mb_used', 'local_gb_used', 'cpu_info',
            'disk_available_least', 'hypervisor_type', 'hypervisor_version',
        )
    },
}  # fmt: skip
_AGGREGATE = {'id': 'id', 'uuid': 'uuid', 'name': 'name', 'hosts': 'hosts'}
_FLAVOR = {
    'flavorid': 'id',
    'name': 'name',
    'vcpus': 'vcpus',
    'memory_mb': 'ram',
    'root_gb': 'disk',
    'ephemeral_gb': 'OS-FLV-EXT-DATA:ephemeral',
    'swap': 'swap',
    'extra_specs': 'properties',
}
# How the DNS service reaches the servers of a pool.
_SERVERS = (
    'ns_records', 'nameservers', 'targets', 'also_notifies', 'catalog_zone'
)  # fmt: skip


def inventory(document: Any, default_pool_id: str) -> Any:
    """Return what clients print as an inventory document.

    :param document: plain values, of one client or a list of several
    :param default_pool_id: of the pool ``default``, which needs no id
    :raises InvalidInventory: the inventory has no place for it
    """
    entries = document if isinstance(document, list) else [document]
    kinds = {_kind(entry, document) for entry in entries}
    if not entries or None in kinds:
        return document
    found: dict[str, list[Any]] = {}
    for entry in entries:
        kind = _kind(entry, document)
        if kind == 'flavors':
            raise errors.InvalidInventory(
                f'{entry.get("name")} is a flavor: an inventory has none; '
                'capacity --flavor takes this file'
            )
        if kind == 'pools':
            made = _pool(entry, default_pool_id)
        else:
            made = _host(entry) if kind == 'hosts' else _aggregate(entry)
        found.setdefault(str(kind), []).append(made)
    return found


def flavor(document: Any) -> Any:
    """Return a flavor that a client prints as a flavor of ours.

    Alone, or as an entry of a list, whose names are capitalized.
    """
    if isinstance(document, dict) and 'RAM' in document:
        document = {name.lower(): value for name, value in document.items()}
        document['OS-FLV-EXT-DATA:ephemeral'] = document.get('ephemeral')
    if _kind(document, document) != 'flavors':
        return document
    # Without swap, clients of earlier releases print an empty text.
    return dict(_renamed({**document, 'swap': document['swap'] or 0}, _FLAVOR))


def _kind(entry: Any, document: Any) -> str | None:
    """Return the part of an inventory that a client's entry belongs to.

    :return: None: it is none of a client
    """
    if not isinstance(entry, dict):
        return None
    names = entry.keys()
    if names >= {'service_host', 'hypervisor_hostname'}:
        return 'hosts'
    if names >= {'ram', 'disk', 'swap'}:
        return 'flavors'
    if names >= {'id', 'name', 'hosts', 'properties'}:
        return 'aggregates'
    if isinstance(document, list) and 'name' in names:
        return 'pools'
    return None


def _renamed(
    entry: Mapping[str, Any], names: Mapping[str, str]
) -> Iterator[tuple[str, Any]]:
    for ours, theirs in names.items():
        if entry.get(theirs) is not None:
            yield ours, entry[theirs]


def flavor_of_text(text: str) -> dict[str, Any]:
    """Return the flavor that a text such as ``vcpus=2,...`` means.

    :raises InvalidRequest: a part is neither a size nor an extra spec
    """
    flavor: dict[str, Any] = {}
    specs: dict[str, str] = {}
    for part in text.split(','):
        key, sign, value = part.partition('=')
        if not key or not sign:
            raise errors.InvalidRequest(f'expected KEY=VALUE, got {part}')
        if key in _NUMBERS:
            flavor[key] = int(value) if _DIGITS.fullmatch(value) else value
        elif ':' in key:
            specs[key] = value
        else:
            raise errors.InvalidRequest(
                f'{key}: neither a size ({", ".join(_NUMBERS)}) nor an '
                'extra spec with a colon'
            )
    return {**flavor, 'extra_specs': specs}


def _host(entry: Mapping[str, Any]) -> dict[str, Any]:
    host = dict(_renamed(entry, _HOST))
    absent = [name for name in _SIZES if name not in host]
    if absent:
        raise errors.InvalidInventory(
            f'{entry["hypervisor_hostname"]}: the client did not print '
            f'{", ".join(absent)}: use --os-compute-api-version 2.87'
        )
    if isinstance(entry.get('id'), str):
        # In early versions of the API it is a number.
        host['uuid'] = entry['id']
    return host


def _aggregate(entry: Mapping[str, Any]) -> dict[str, Any]:
    # Clients take the zone out of the metadata.
    metadata = entry['properties']
    zone = entry.get('availability_zone')
    if zone is not None and isinstance(metadata, dict):
        metadata = {**metadata, 'availability_zone': zone}
    return {**dict(_renamed(entry, _AGGREGATE)), 'metadata': metadata}


def _pool(entry: Mapping[str, Any], default_pool_id: str) -> dict[str, Any]:
    pool = {name: entry[name] for name in entry if name not in _SERVERS}
    name = entry['name']
    if 'id' not in entry:
        pool['id'] = (
            default_pool_id
            if name == 'default'
            else str(uuid.uuid5(_NAMESPACE, f'pool\0{name}'))
        )
    attributes = entry.get('attributes') or {}
    if isinstance(attributes, dict):
        # YAML reads some words as numbers, booleans or dates.
        attributes = {
            key: value if value is None else str(value)
            for key, value in attributes.items()
        }
    return {**pool, 'attributes': attributes}
