"""Translates between the compute service's objects and our documents.

A RequestSpec becomes a request of ours. A field that the engine does not
support is refused by name, unless it does not matter for the place of an
instance. Casts of compute services become events for the store; an object
that is invalid raises InvalidRequest.

Of the engine's answers a caller re-raises exceptions of its own module alone;
others arrive as remote errors, which mean nothing to a tenant who reads the
fault of the instance. So every refusal is a NoValidHost, and its reason says
what is wrong. Stateless; any thread may call the functions.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from scheduler_service import errors
from scheduler_service.compute import wire
from scheduler_service.compute.wire import NetworkMetadata
from scheduler_service.model import (
    Aggregate,
    HostsAnswer,
    Instance,
    Request,
    Selection,
    ServerGroup,
    documents,
    image_properties,
)
from scheduler_service.model.inventory import Uuid, dashed
from scheduler_service.model.limits import NAME_LENGTH
from scheduler_service.model.request import MAX_INSTANCES
from scheduler_service.model.request_parts import (
    MAX_GROUPS,
    Destination,
    Flavor,
    GuestNuma,
    GuestNumaCell,
    Image,
    PciRequest,
    ResourceGroup,
    Retry,
)
from scheduler_service.model.requirements.amounts import asked, known
from scheduler_service.model.requirements.specs import (
    TOO_MUCH,
    Specs,
    amount_of,
)
from scheduler_service.store.workers import host_state_writer

_PAGE_SIZES = {-1: 'small', -2: 'large', -3: 'any'}
# Properties of an image that are lists.
_LISTS: dict[str, Any] = {
    'traits_required': list[str],
    'hw_numa_cpus': list[list[int]],
    'hw_numa_mem': list[int],
}
# Of the uuids of server groups that come without one.
_GROUPS = uuid.UUID('6a1d3c52-7f0e-4b89-9d24-c85b1e60f7a3')
# Parts of a device's description that placement is asked for.
_PLACED = ('resource_class', 'traits', 'rp_uuids')
T = TypeVar('T')
_MAX_ENTRIES = 10_000
# The fields that are read -> ours.
_AGGREGATE = {
    name: name for name in ('id', 'uuid', 'name', 'hosts', 'metadata')
}
_INSTANCE = {
    'uuid': 'uuid',
    'host': 'host',
    'node': 'hypervisor_hostname',
    'project_id': 'project_id',
    'image_ref': 'image_id',
    'availability_zone': 'availability_zone',
    'task_state': 'task_state',
}
# Microversion of the placement API that the allocation request is for.
ALLOCATION_REQUEST_VERSION = '1.36'
MODULE = 'nova.exception'
_TOO_FEW = 'There are not enough hosts available.'
# Texts for tenants, of errors that do not concern capacity.
_SHORT = {
    'Conflict': 'Its allocations were changed by others meanwhile.',
    'ServiceBusy': 'The scheduler is busy.',
    'StoreUnavailable': 'The scheduler is not available.',
    'StoreTimeout': 'The scheduler is not available.',
    'TooLate': 'The scheduler answered too late.',
    'RequestCancelled': 'The request was cancelled.',
}


class ComputeRequest(NamedTuple):
    """A request, with further parts of its RequestSpec.

    :ivar group: the server group; None: absent
    :ivar networks: how its networks reach a host; None: absent
    """

    request: Request
    group: ServerGroup | None
    networks: wire.NetworkMetadata | None


class _Checked(wire.Part):
    """Parts of the request that are checked by their types."""

    instance_uuids: Annotated[
        list[Uuid], msgspec.Meta(min_length=1, max_length=MAX_INSTANCES)
    ] = []
    resource_groups: Annotated[
        list[ResourceGroup], msgspec.Meta(max_length=MAX_GROUPS)
    ] = []


class _Group(wire.Part):
    """RequestGroup."""

    requester_id: str | None = None
    resources: dict[str, int] | None = None
    required_traits: list[str] | None = None
    forbidden_traits: list[str] | None = None
    aggregates: list[list[str]] | None = None
    forbidden_aggregates: list[str] | None = None
    in_tree: str | None = None


def translate(
    spec_obj: Any,
    instance_uuids: Sequence[Any],
    context: Mapping[str, Any],
    group_of: Callable[[Sequence[str]], str | None] = lambda members: None,
) -> ComputeRequest:
    """Return a RequestSpec as a request of ours.

    :param spec_obj: the serialized object
    :param instance_uuids: of the instances to place
    :param context: of the caller
    :param group_of: returns the uuid of a stored server group that has some
        of these instances; None: there is none
    :raises InvalidRequest: it is invalid, or needs something that is not
        supported
    """
    plain = wire.named(spec_obj, 'RequestSpec', 'spec_obj')
    documents.check_text(plain, fault=errors.InvalidRequest)
    spec = documents.arguments(plain, wire.RequestSpec)
    uuids = documents.arguments(
        {'instance_uuids': instance_uuids}, _Checked
    ).instance_uuids
    group = spec.instance_group
    if group is not None and group.uuid is None:
        members = group.members or uuids
        made = uuid.uuid5(_GROUPS, members[0])
        group.uuid = group_of(members) or str(made)
    try:
        request = _request(spec, uuids, context)
    except ValueError as fault:
        raise errors.InvalidRequest(str(fault)) from None
    return ComputeRequest(
        request,
        _server_group(spec.instance_group),
        spec.network_metadata,
    )


def _request(
    spec: wire.RequestSpec, uuids: list[str], context: Mapping[str, Any]
) -> Request:
    """Return the request."""
    specs = known(spec.flavor.extra_specs or {})
    params = spec.request_level_params
    numa = _numa_topology(spec.numa_topology, spec.network_metadata)
    devices = _pci_requests(spec.pci_requests, _placed_devices(spec))
    group = spec.instance_group
    attempts = _attempts(spec.retry)
    flavor = spec.flavor
    return Request(
        request_id=text(context, 'request_id'),
        project_id=spec.project_id or text(context, 'project_id'),
        user_id=spec.user_id or text(context, 'user_id'),
        num_instances=len(uuids),
        instance_uuids=uuids,
        flavor=Flavor(
            flavorid=flavor.flavorid,
            name=flavor.name,
            vcpus=flavor.vcpus,
            memory_mb=flavor.memory_mb,
            root_gb=flavor.root_gb,
            ephemeral_gb=flavor.ephemeral_gb,
            swap=flavor.swap,
            extra_specs=specs,
        ),
        image=_image(spec.image),
        availability_zone=spec.availability_zone,
        scheduler_hints={
            name: value if isinstance(value, list) else [value]
            for name, value in (spec.scheduler_hints or {}).items()
            if value is not None
        },
        instance_group=group.uuid if group else None,
        group_hosts=(group.hosts or []) if group else [],
        ignore_hosts=spec.ignore_hosts or [],
        ignore_nodes=attempts,
        force_hosts=spec.force_hosts or [],
        force_nodes=spec.force_nodes or [],
        retry=Retry(num_attempts=spec.retry.num_attempts, hosts=attempts)
        if spec.retry
        else None,
        requested_destination=_destination(spec.requested_destination),
        lenient=True,
        boot_from_volume=bool(spec.is_bfv),
        root_traits=_root_traits(params),
        numa_topology=numa,
        pci_requests=devices,
        resource_groups=_resource_groups(spec, specs),
        same_subtree=(params.same_subtree or []) if params else [],
    )


def _image(sent: wire.Image | None) -> Image | None:
    """Return an image; traits and NUMA cells as properties of an image."""
    if sent is None:
        return None
    properties = {
        name: value
        for name, value in (sent.properties or {}).items()
        if value is not None
    }
    for name, kind in _LISTS.items():
        try:
            listed = msgspec.convert(properties.pop(name, []), kind)
        except msgspec.ValidationError as fault:
            place = f'image.properties.{name}'
            raise errors.InvalidRequest.at(place, str(fault)) from None
        for index, value in enumerate(listed):
            if name == 'traits_required':
                properties[f'trait:{value}'] = 'required'
            elif name == 'hw_numa_cpus':
                properties[f'{name}.{index}'] = ','.join(map(str, value))
            else:
                properties[f'{name}.{index}'] = value
    return Image(
        id=sent.id, disk_format=sent.disk_format, properties=properties
    )


def _destination(sent: wire.Destination | None) -> Destination | None:
    if sent is None:
        return None
    return Destination(
        host=sent.host,
        node=sent.node,
        cell=sent.cell.uuid if sent.cell else None,
        allow_cross_cell_move=bool(sent.allow_cross_cell_move),
        aggregates=sent.aggregates or [],
        forbidden_aggregates=sent.forbidden_aggregates or [],
    )


def _attempts(sent: wire.Retries | None) -> list[tuple[str, str]]:
    """Return the (host, node) pairs that were tried before."""
    if sent is None or sent.hosts is None:
        return []
    return [
        (node.host, node.hypervisor_hostname or node.host)
        for node in sent.hosts.objects
        if node.host
    ]


def _numa_topology(
    sent: wire.NumaTopology | None, networks: wire.NetworkMetadata | None
) -> GuestNuma | None:
    """Return a NUMA topology; None: the request has none."""
    if sent is None or not sent.cells:
        return None
    return GuestNuma(
        cells=[
            GuestNumaCell(
                cpus=len({*(cell.cpuset or ()), *(cell.pcpuset or ())}),
                memory_mb=cell.memory,
                dedicated=_dedicated_cpus(cell),
                thread_policy=cell.cpu_thread_policy,
                page_size=None
                if cell.pagesize is None
                else _PAGE_SIZES.get(cell.pagesize, str(cell.pagesize)),
            )
            for cell in sent.cells
        ],
        pinned=any(_dedicated_cpus(cell) for cell in sent.cells),
        isolated_emulator=sent.emulator_threads_policy == 'isolate',
        physnets=sorted(networks.physnets or ()) if networks else [],
        tunneled=networks.tunneled if networks else False,
    )


def _dedicated_cpus(cell: wire.NumaCell) -> int:
    """Return how many CPUs of a guest's cell are dedicated to it."""
    if cell.pcpuset or cell.cpu_policy != 'dedicated':
        return len(cell.pcpuset or ())
    # Older callers have all CPUs in one set.
    return len(cell.cpuset or ())


def _pci_requests(
    sent: wire.PciRequests | None, placed: Collection[str]
) -> list[PciRequest]:
    """Return requests for PCI devices.

    :param placed: ids of device requests that groups of resources cover
    """
    return [
        PciRequest(
            name=device.alias_name or device.requester_id,
            count=device.count,
            alternatives=[_device(spec) for spec in device.spec or [{}]],
            numa_policy=device.numa_policy or 'legacy',
            groups=device.request_id if device.request_id in placed else None,
        )
        for device in (sent.requests if sent else ())
    ]


def _device(spec: dict[str, Any]) -> dict[str, str | None]:
    return {
        name: None if value is None else str(value)
        for name, value in spec.items()
        if name not in _PLACED
    }


def _server_group(sent: wire.Group | None) -> ServerGroup | None:
    """Return a server group as our document; None where it has no policy."""
    if sent is None:
        return None
    policy = sent.policy or next(iter(sent.policies or ()), None)
    if policy is None:
        return None
    rules = {}
    most = (sent.rules or {}).get('max_server_per_host')
    if most is not None:
        amount = amount_of(most)
        if amount is None or amount >= TOO_MUCH:
            place = 'instance_group.rules.max_server_per_host'
            raise errors.InvalidRequest.at(place, 'expected a number')
        rules['max_server_per_host'] = amount
    return documents.parse(
        {
            'uuid': sent.uuid,
            'name': sent.name or sent.uuid,
            'project_id': sent.project_id,
            'policy': policy,
            'rules': rules,
            'members': sent.members or [],
        },
        ServerGroup,
    )


def _resource_groups(
    spec: wire.RequestSpec, specs: Mapping[str, str]
) -> list[ResourceGroup]:
    """Return the groups of ports and devices."""
    groups: dict[str, dict[str, Any]] = {}
    for sent in spec.requested_resources or ():
        group = documents.arguments(sent, _Group)
        suffix = group.requester_id or _next_number(
            [*groups, *asked(Specs(specs, {})).groups]
        )
        groups[suffix] = {
            'resources': group.resources or {},
            'required': sorted(group.required_traits or ()),
            'forbidden': sorted(group.forbidden_traits or ()),
            'aggregates': [
                ','.join(uuids) for uuids in group.aggregates or ()
            ],
            'forbidden_aggregates': sorted(group.forbidden_aggregates or ()),
            'in_tree': group.in_tree,
        }
    suffixed = [{'suffix': name, **groups[name]} for name in sorted(groups)]
    return documents.arguments(
        {'resource_groups': suffixed}, _Checked
    ).resource_groups


def _next_number(names: Collection[str]) -> str:
    numbers = [
        int(name) for name in names if name.isascii() and name.isdigit()
    ]
    return str(max(numbers, default=0) + 1)


def _placed_devices(spec: wire.RequestSpec) -> frozenset[str]:
    """Return the ids of device requests that groups of resources cover."""
    return frozenset(
        str(group.get('requester_id')).rpartition('-')[0]
        for group in spec.requested_resources or ()
        if group.get('requester_id')
    )


def _root_traits(params: wire.LevelParams | None) -> dict[str, Any]:
    """Return the traits that the host itself must or must not have."""
    if params is None:
        return {}
    required = params.root_required or []
    forbidden = params.root_forbidden or []
    both = sorted({*required} & {*forbidden})
    if both:
        text = f'{both[0]} is required and forbidden'
        raise errors.InvalidRequest.at('request_level_params', text)
    return {
        **dict.fromkeys(required, 'required'),
        **dict.fromkeys(forbidden, 'forbidden'),
    }


def text(context: Mapping[str, Any], name: str) -> str | None:
    """Return a text of a context; None: absent, or too long to keep."""
    value = context.get(name)
    if not isinstance(value, str) or len(value) > NAME_LENGTH:
        return None
    return value


def aggregates(argument: Any) -> host_state_writer.UpdateAggregates:
    """Return the event for an aggregate, a list of them, or a list object."""
    return host_state_writer.UpdateAggregates(
        aggregates=[
            _document(plain, _AGGREGATE, Aggregate)
            for plain in _objects(argument, 'aggregates')
        ]
    )


def no_aggregate(argument: Any) -> host_state_writer.DeleteAggregate:
    """Return the event for a deleted aggregate."""
    plain = wire.named(argument, 'Aggregate', 'aggregate')
    gone = _document(plain, _AGGREGATE, Aggregate)
    return host_state_writer.DeleteAggregate(id=gone.id)


def instances(host: str, argument: Any) -> host_state_writer.UpdateInstances:
    """Return the event for instances on a host, which may have others too."""
    return host_state_writer.UpdateInstances(
        instances=[
            _document(
                plain,
                _INSTANCE,
                Instance,
                host=host,
                image_meta=_known_image(plain),
            )
            for plain in _objects(argument, 'instance_info')
        ]
    )


def no_instance(host: str, uuid: str) -> host_state_writer.DeleteInstances:
    """Return the event for an instance that left a host."""
    return host_state_writer.DeleteInstances(host=host, uuids=[dashed(uuid)])


def all_instances(
    host: str, uuids: list[str]
) -> host_state_writer.SyncInstances:
    """Return the event for all the instances of a host."""
    return host_state_writer.SyncInstances(
        host=host, uuids=[dashed(uuid) for uuid in uuids]
    )


def _known_image(plain: Any) -> dict[str, Any]:
    """Return what is known of an instance's image."""
    if not isinstance(plain, dict):
        return {}
    return image_properties.of_system_metadata(plain.get('system_metadata'))


def _objects(argument: Any, place: str) -> list[Any]:
    """Unwrap an object, a list of them, or a list object; return a list."""
    plain = wire.unwrap(argument, place)
    if isinstance(plain, dict) and 'objects' in plain:
        plain = plain['objects']
    objects = plain if isinstance(plain, list) else [plain]
    documents.check_count(objects, place, _MAX_ENTRIES)
    return objects


def _document(
    plain: Any, names: Mapping[str, str], kind: type[T], **defaults: Any
) -> T:
    """Return an object as our document, of the fields that are set."""
    if isinstance(plain, dict):
        read = {ours: plain.get(theirs) for theirs, ours in names.items()}
        given = {name: v for name, v in read.items() if v not in (None, '')}
        plain = {**defaults, **given}
    return documents.parse(plain, kind)


def selections(
    answer: HostsAnswer,
    amounts: Mapping[str, int],
    alternates: bool,
    networks: NetworkMetadata | None = None,
) -> list[list[dict[str, Any]]]:
    """Return, for each instance, its Selection, then its alternates.

    :param amounts: resource class -> what each instance takes
    :param alternates: whether to include alternates
    :param networks: of the request; goes with the limits of NUMA cells
    """
    # Alternates are the same for all instances of a cell.
    made: dict[str, dict[str, Any]] = {}

    def make(selected: Selection) -> dict[str, Any]:
        if selected.allocation is not msgspec.UNSET:
            return _selection(selected, amounts, networks)
        if selected.uuid not in made:
            made[selected.uuid] = _selection(selected, amounts, networks)
        return made[selected.uuid]

    return [
        [
            make(placement.selected),
            *map(make, placement.alternates if alternates else ()),
        ]
        for placement in answer.placements
    ]


def plain(
    answer: HostsAnswer, networks: NetworkMetadata | None = None
) -> list[dict[str, Any]]:
    """Return host, node and limits of each instance in place of Selections."""
    made = []
    for placement in answer.placements:
        selected = placement.selected
        limits: dict[str, Any] = {**selected.limits}
        numa = _numa_limits(selected, networks)
        if numa is not None:
            limits['numa_topology'] = numa
        made.append(
            {
                'host': selected.host,
                'nodename': selected.node,
                'limits': limits,
            }
        )
    return made


def _numa_limits(
    selected: Selection, networks: NetworkMetadata | None
) -> dict[str, Any] | None:
    """Return the limits by which the host's service checks NUMA cells."""
    if selected.numa_limits is msgspec.UNSET:
        return None
    data: dict[str, Any] = dict(selected.numa_limits)
    if networks is not None:
        data['network_metadata'] = wire.wrap(
            'NetworkMetadata',
            '1.0',
            {
                'physnets': networks.physnets or [],
                'tunneled': networks.tunneled,
            },
        )
    return wire.wrap('NUMATopologyLimits', '1.1', data)


def _selection(
    selected: Selection,
    amounts: Mapping[str, int],
    networks: NetworkMetadata | None,
) -> dict[str, Any]:
    limits = selected.limits
    return wire.wrap(
        'Selection',
        '1.1',
        {
            'compute_node_uuid': selected.uuid,
            'service_host': selected.host,
            'nodename': selected.node,
            'cell_uuid': selected.cell,
            'limits': wire.wrap(
                'SchedulerLimits',
                '1.0',
                {
                    'numa_topology': _numa_limits(selected, networks),
                    'vcpu': limits.get('vcpu'),
                    'disk_gb': limits.get('disk_gb'),
                    'memory_mb': limits.get('memory_mb'),
                },
            ),
            'allocation_request': _allocation_request(selected, amounts),
            'allocation_request_version': ALLOCATION_REQUEST_VERSION,
            'availability_zone': selected.zone,
        },
    )


def _allocation_request(
    selected: Selection, amounts: Mapping[str, int]
) -> str:
    """Return the allocation request of a claim on a host, in JSON.

    :param amounts: of the host's own provider, where no other gives any
    """
    document = selected.allocation
    if document is msgspec.UNSET:
        resources = dict(sorted(amounts.items()))
        document = {
            'allocations': {selected.uuid: {'resources': resources}},
            'mappings': {'': [selected.uuid]},
        }
    return json.dumps(document)


class NoValidHost(Exception):
    """No host for an instance, as the compute service names it.

    :param reason: follows the sentence that every such error begins with
    :ivar kwargs: travels over the bus with the name and the text
    """

    code = 500

    def __init__(self, reason: str = '') -> None:
        self.reason = reason
        self.kwargs: dict[str, Any] = {'reason': reason, 'code': self.code}
        super().__init__(f'No valid host was found. {reason}')


# Callers look the class up by its module and name.
NoValidHost.__module__ = MODULE


def failure(error: errors.SchedulerError, full: bool) -> NoValidHost:
    """Return an error of ours as an exception that callers catch.

    :param full: give the whole reason, which may reveal hosts' capacity
    """
    text = str(error.args[0]) if error.args else error.name
    if isinstance(error, errors.NoValidHost):
        if not full:
            return NoValidHost(_TOO_FEW)
        return NoValidHost(text.removeprefix('No valid host was found. '))
    if isinstance(error, errors.InvalidRequest):
        # The text concerns the request alone.
        return NoValidHost(text)
    if full:
        return NoValidHost(f'{error.name}: {text}')
    return NoValidHost(_SHORT.get(error.name, 'The scheduler failed.'))


def no_such_host(host: str | None, node: str | None) -> NoValidHost:
    """Return the error for a requested host or node that does not exist."""
    return NoValidHost(f'No such host - host: {host} node: {node} ')
