"""A RequestSpec of the compute service as a request of ours.

What the engine has no notion of is refused by name, or does not matter for
the place of an instance. Stateless; any thread may call it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from scheduler_service import errors
from scheduler_service.compute import groups, objects, parts, resources, wire
from scheduler_service.compute.features import Features
from scheduler_service.model import Request, ServerGroup, documents
from scheduler_service.model.limits import NAME_LENGTH

_ALIAS = 'pci_passthrough:alias'


class ComputeRequest(NamedTuple):
    """A request, and what came with it.

    :ivar group: the server group that travelled along; None: none did
    :ivar networks: how its networks reach a host; None: not said
    """

    request: Request
    group: ServerGroup | None
    networks: wire.NetworkMetadata | None


def translate(
    spec_obj: Any,
    instance_uuids: Sequence[Any],
    context: Mapping[str, Any],
    offered: Collection[str] = (),
    with_groups: bool = False,
) -> ComputeRequest:
    """Return a RequestSpec as a request of ours.

    :param spec_obj: the object as it travels
    :param instance_uuids: of the instances to place
    :param context: of the caller
    :param offered: resource classes that some host offers
    :param with_groups: whether groups of resources can be claimed
    :raises InvalidRequest: it cannot be read, or asks for something that is
        not supported
    """
    plain = objects.named(spec_obj, 'RequestSpec', 'spec_obj')
    spec: wire.RequestSpec = documents.arguments(plain, wire.RequestSpec)
    specs = _extra_specs(spec.flavor)
    grouped: dict[str, Any] = {}
    placed: frozenset[str] = frozenset()
    if with_groups:
        grouped = groups.of_request(spec, specs)
        placed = groups.placed_devices(spec)
    else:
        _check_supported(spec)
        resources.check(specs)
    numa = parts.numa_topology(spec.numa_topology)
    group = spec.instance_group
    features = Features(specs, spec.image)
    tried = parts.tried(spec.retry)
    retry = spec.retry
    document: dict[str, Any] = {
        'request_id': request_id(context),
        'project_id': spec.project_id or text(context, 'project_id'),
        'user_id': spec.user_id or text(context, 'user_id'),
        'num_instances': len(instance_uuids),
        'instance_uuids': list(instance_uuids),
        'flavor': _flavor(spec.flavor, specs),
        'image': parts.image(spec.image),
        'availability_zone': spec.availability_zone,
        'scheduler_hints': _hints(spec.scheduler_hints),
        'instance_group': group.uuid if group else None,
        'group_hosts': (group.hosts or []) if group else [],
        'ignore_hosts': spec.ignore_hosts or [],
        'ignore_nodes': tried,
        'force_hosts': spec.force_hosts or [],
        'force_nodes': spec.force_nodes or [],
        'retry': {'num_attempts': retry.num_attempts, 'hosts': tried}
        if retry
        else None,
        'requested_destination': parts.destination(spec.requested_destination),
        'amounts': {
            **resources.amounts(spec, specs, offered),
            **features.resources(),
        },
        'traits': {
            **dict.fromkeys(features.traits(), 'required'),
            **resources.traits(spec, offered),
            **_traits(spec.request_level_params),
        },
        'numa_topology': numa,
        'pci_requests': parts.pci_requests(
            spec.pci_requests, bool(numa), placed
        ),
        **grouped,
    }
    made = parts.group(group)
    if placed and not document['pci_requests']:
        # The devices are claimed as groups; the alias stands for the same.
        document['flavor']['extra_specs'].pop(_ALIAS, None)
    return ComputeRequest(
        documents.request(document),
        None if made is None else documents.parse(made, ServerGroup),
        spec.network_metadata,
    )


def _check_supported(spec: wire.RequestSpec) -> None:
    """Refuse what the engine has no notion of.

    :raises InvalidRequest: with its name
    """
    if spec.requested_resources:
        parts.refuse(
            'requested_resources',
            'resources of ports and device profiles are',
        )
    params = spec.request_level_params
    if params is not None and params.same_subtree:
        parts.refuse(
            'request_level_params.same_subtree', 'groups of resources are'
        )


def _extra_specs(flavor: wire.Flavor) -> dict[str, str]:
    specs = flavor.extra_specs or {}
    return {key: value for key, value in specs.items() if value is not None}


def _flavor(flavor: wire.Flavor, specs: dict[str, str]) -> dict[str, Any]:
    return {
        'flavorid': flavor.flavorid,
        'name': flavor.name,
        'vcpus': flavor.vcpus,
        'memory_mb': flavor.memory_mb,
        'root_gb': flavor.root_gb,
        'ephemeral_gb': flavor.ephemeral_gb,
        'swap': flavor.swap,
        'extra_specs': specs,
    }


def _hints(found: Mapping[str, Any] | None) -> dict[str, list[Any]]:
    """Return scheduler hints, the values of each as a list."""
    return {
        name: value if isinstance(value, list) else [value]
        for name, value in (found or {}).items()
        if value is not None
    }


def _traits(params: wire.LevelParams | None) -> dict[str, str]:
    """Return the traits that the host itself must or must not have.

    :raises InvalidRequest: one is both
    """
    if params is None:
        return {}
    required = params.root_required or []
    forbidden = params.root_forbidden or []
    both = sorted({*required} & {*forbidden})
    if both:
        raise errors.InvalidRequest(
            f'request_level_params: {both[0]} is required and forbidden',
            at='request_level_params',
        )
    return {
        **dict.fromkeys(required, 'required'),
        **dict.fromkeys(forbidden, 'forbidden'),
    }


def request_id(context: Mapping[str, Any]) -> str | None:
    """Return the id that the caller's log has the request under."""
    found = text(context, 'request_id')
    return found if found and len(found) <= NAME_LENGTH else None


def text(context: Mapping[str, Any], name: str) -> str | None:
    """Return a text of a context; None where it has none of that name."""
    value = context.get(name)
    return value if isinstance(value, str) else None
