"""Versioned objects of the compute service: serialized form and fields read.

An object is ``{nova_object.name, nova_object.namespace, nova_object.version,
nova_object.data, nova_object.changes}``. A field that is not set is absent
from its data, a set is a list. Each class here lists the fields of one object
that are read; others are ignored. Stateless; any thread may call it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from scheduler_service import errors
from scheduler_service.model.inventory import Count, Uuid
from scheduler_service.model.limits import MAX_NUMA_CELLS, Short
from scheduler_service.model.request_parts import (
    MAX_CPUS,
    MAX_DEVICES,
    MAX_PAGE_KB,
    MAX_SETTINGS,
)

_NAME = 'nova_object.name'
_NAMESPACE = 'nova_object.namespace'
_VERSION = 'nova_object.version'
_DATA = 'nova_object.data'
_CHANGES = 'nova_object.changes'
# Objects whose major version is not 1.
_MAJOR = {'Instance': '2', 'InstanceList': '2'}
_MAX_DEPTH = 32


def unwrap(value: Any, place: str = '', depth: int = 0) -> Any:
    """Return a value with every object in it replaced by its data.

    :param place: path of the value, for errors
    :raises InvalidRequest: an object has an unsupported version, or no data
    :raises PayloadTooLarge: nested too deeply
    """
    if depth > _MAX_DEPTH:
        raise errors.PayloadTooLarge(f'{place}: nested too deeply')
    if isinstance(value, list):
        return [
            unwrap(item, f'{place}[{index}]', depth + 1)
            for index, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    if _NAME in value:
        value = _data(value, place)
    return {
        key: unwrap(item, f'{place}.{key}'.lstrip('.'), depth + 1)
        for key, item in value.items()
    }


def named(value: Any, name: str, place: str) -> Any:
    """Return an object of a class, unwrapped.

    :raises InvalidRequest: the value is not an object of this class
    """
    actual = value.get(_NAME) if isinstance(value, dict) else None
    if actual != name:
        what = type(value).__name__ if actual is None else str(actual)[:60]
        text = f'expected an object {name}, got {what}'
        raise errors.InvalidRequest.at(place, text)
    return unwrap(value, place)


def _data(value: Mapping[str, Any], place: str) -> dict[str, Any]:
    name = str(value[_NAME])[:60]
    version = str(value.get(_VERSION))[:20]
    major = _MAJOR.get(name, '1')
    if version.partition('.')[0] != major:
        raise errors.InvalidRequest.at(
            place,
            f'version {version} of the object {name} is not supported, only '
            f'{major}.x',
        )
    data = value.get(_DATA)
    if not isinstance(data, dict):
        text = f'the object {name} has no {_DATA}'
        raise errors.InvalidRequest.at(place, text)
    return data


def wrap(name: str, version: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return an object, with all of its fields marked as changed."""
    return {
        _NAME: name,
        _NAMESPACE: 'nova',
        _VERSION: version,
        _DATA: data,
        _CHANGES: sorted(data),
    }


_Cpus = Annotated[list[int], msgspec.Meta(max_length=MAX_CPUS)]


class Part(msgspec.Struct, kw_only=True):
    """Base class: fields without an attribute are ignored."""


class Flavor(Part):
    """Flavor; swap in MB."""

    vcpus: Count
    memory_mb: Count
    flavorid: str | None = None
    name: str | None = None
    root_gb: Count = 0
    ephemeral_gb: Count = 0
    swap: Count = 0
    extra_specs: (
        Annotated[dict[str, str | None], msgspec.Meta(max_length=MAX_SETTINGS)]
        | None
    ) = None


class Image(Part):
    """ImageMeta, with its properties as they are."""

    id: str | None = None
    disk_format: str | None = None
    properties: (
        Annotated[dict[str, Any], msgspec.Meta(max_length=MAX_SETTINGS)] | None
    ) = None


class NumaCell(Part):
    """InstanceNUMACell; memory in MB, pagesize in KiB or a symbol below 0."""

    memory: Count
    cpuset: _Cpus | None = None
    pcpuset: _Cpus | None = None
    pagesize: Annotated[int, msgspec.Meta(ge=-3, le=MAX_PAGE_KB)] | None = None
    cpu_policy: str | None = None
    cpu_thread_policy: Literal['prefer', 'require', 'isolate'] | None = None


class NumaTopology(Part):
    """InstanceNUMATopology."""

    cells: Annotated[list[NumaCell], msgspec.Meta(max_length=MAX_NUMA_CELLS)]
    emulator_threads_policy: str | None = None


class PciRequest(Part):
    """InstancePCIRequest."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_DEVICES)]
    spec: list[dict[str, Any]] | None = None
    alias_name: str | None = None
    request_id: str | None = None
    requester_id: str | None = None
    numa_policy: (
        Literal['legacy', 'preferred', 'required', 'socket'] | None
    ) = None


class PciRequests(Part):
    """InstancePCIRequests."""

    requests: list[PciRequest] = []


class CellMapping(Part):
    uuid: str


class Destination(Part):
    host: str | None = None
    node: str | None = None
    cell: CellMapping | None = None
    aggregates: list[str] | None = None
    forbidden_aggregates: list[str] | None = None
    allow_cross_cell_move: bool | None = False


class ComputeNode(Part):
    """ComputeNode: only its names."""

    host: str | None = None
    hypervisor_hostname: str | None = None


class ComputeNodes(Part):
    """ComputeNodeList."""

    objects: list[ComputeNode] = []


class Retries(Part):
    """SchedulerRetries."""

    num_attempts: Count = 0
    hosts: ComputeNodes | None = None


class Group(Part):
    """InstanceGroup; older ones have policies in place of a policy.

    :ivar uuid: None: of an old instance, whose group is known by its members
    """

    uuid: Uuid | None = None
    name: str | None = None
    project_id: str | None = None
    policy: str | None = None
    policies: list[str] | None = None
    rules: dict[str, str] | None = msgspec.field(name='_rules', default=None)
    members: list[str] | None = None
    hosts: list[str] | None = None


class LevelParams(Part):
    """RequestLevelParams."""

    root_required: list[str] | None = None
    root_forbidden: list[str] | None = None
    same_subtree: list[list[str]] | None = None


class NetworkMetadata(Part):
    """NetworkMetadata: how the networks of an instance reach its host."""

    physnets: list[str] | None = None
    tunneled: bool = False


class RequestSpec(Part):
    flavor: Flavor
    image: Image | None = None
    project_id: Short | None = None
    user_id: str | None = None
    availability_zone: str | None = None
    numa_topology: NumaTopology | None = None
    pci_requests: PciRequests | None = None
    ignore_hosts: list[str] | None = None
    force_hosts: list[str] | None = None
    force_nodes: list[str] | None = None
    requested_destination: Destination | None = None
    retry: Retries | None = None
    instance_group: Group | None = None
    scheduler_hints: dict[str, Any] | None = None
    is_bfv: bool | None = False
    requested_resources: list[dict[str, Any]] | None = None
    request_level_params: LevelParams | None = None
    network_metadata: NetworkMetadata | None = None
