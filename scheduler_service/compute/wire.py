"""The objects of a request of the compute service, as far as they are read.

Each class lists the fields of one versioned object; others are ignored. A
field that is not set is absent, so each has a default but those that no
caller leaves out.
"""

from __future__ import annotations

from typing import Any

import msgspec

from scheduler_service.model.inventory import Uuid


class Part(msgspec.Struct, kw_only=True):
    """Base of all: fields that are not listed are ignored."""


class Flavor(Part):
    """Flavor; swap in MB."""

    vcpus: int
    memory_mb: int
    flavorid: str | None = None
    name: str | None = None
    root_gb: int = 0
    ephemeral_gb: int = 0
    swap: int = 0
    disabled: bool | None = False
    extra_specs: dict[str, str | None] | None = None


class Image(Part):
    """ImageMeta, with its properties as they are."""

    id: str | None = None
    disk_format: str | None = None
    properties: dict[str, Any] | None = None


class NumaCell(Part):
    """InstanceNUMACell; memory in MB, pagesize in KiB or a symbol below 0."""

    memory: int
    cpuset: list[int] | None = None
    pcpuset: list[int] | None = None
    pagesize: int | None = None
    cpu_policy: str | None = None
    cpu_thread_policy: str | None = None


class NumaTopology(Part):
    """InstanceNUMATopology."""

    cells: list[NumaCell]
    emulator_threads_policy: str | None = None


class PciRequest(Part):
    """InstancePCIRequest."""

    count: int
    spec: list[dict[str, Any]] | None = None
    alias_name: str | None = None
    request_id: str | None = None
    requester_id: str | None = None
    numa_policy: str | None = None


class PciRequests(Part):
    """InstancePCIRequests."""

    requests: list[PciRequest] = []


class CellMapping(Part):
    """CellMapping."""

    uuid: str


class Destination(Part):
    """Destination."""

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

    num_attempts: int = 0
    hosts: ComputeNodes | None = None


class Group(Part):
    """InstanceGroup; older ones have policies in place of a policy."""

    uuid: Uuid
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
    """RequestSpec."""

    flavor: Flavor
    image: Image | None = None
    num_instances: int = 1
    instance_uuid: str | None = None
    project_id: str | None = None
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


class Aggregate(Part):
    """Aggregate."""

    id: int
    uuid: str | None = None
    name: str | None = None
    hosts: list[str] | None = None
    metadata: dict[str, str] | None = None


class Instance(Part):
    """Instance: what the store keeps of one."""

    uuid: Uuid
    host: str | None = None
    node: str | None = None
    project_id: str | None = None
    image_ref: str | None = None
    availability_zone: str | None = None
    task_state: str | None = None
