"""Groups of resources in a request: of ports, devices and extra specs.

Stateless; any thread may call it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler_service.compute import parts, wire
from scheduler_service.model import documents

_NUMBERED = re.compile(r'(resources|trait)([a-zA-Z0-9_-]{1,64}):(.+)')


class _Group(msgspec.Struct):
    """RequestGroup."""

    requester_id: str | None = None
    use_same_provider: bool = True
    resources: dict[str, int] | None = None
    required_traits: list[str] | None = None
    forbidden_traits: list[str] | None = None
    aggregates: list[list[str]] | None = None
    forbidden_aggregates: list[str] | None = None
    in_tree: str | None = None


def of_request(
    spec: wire.RequestSpec, specs: Mapping[str, str]
) -> dict[str, Any]:
    """Return the fields of our document that say which groups there are.

    :param specs: extra specs
    :raises InvalidRequest: one cannot be read or claimed
    """
    found = _of_extra_specs(specs)
    for number, one in enumerate(spec.requested_resources or ()):
        group = documents.arguments(one, _Group)
        if not group.use_same_provider:
            parts.refuse(
                f'requested_resources[{number}].use_same_provider',
                'groups of several providers are',
            )
        suffix = group.requester_id or _next_number(found)
        found[suffix] = {
            'resources': group.resources or {},
            'required': sorted(group.required_traits or ()),
            'forbidden': sorted(group.forbidden_traits or ()),
            'aggregates': [','.join(one) for one in group.aggregates or ()],
            'forbidden_aggregates': sorted(group.forbidden_aggregates or ()),
            'in_tree': group.in_tree,
        }
    params = spec.request_level_params
    return {
        'resource_groups': [
            {'suffix': suffix, **found[suffix]} for suffix in sorted(found)
        ],
        'group_policy': specs.get('group_policy'),
        'same_subtree': (params.same_subtree or []) if params else [],
    }


def _of_extra_specs(specs: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the numbered groups of extra specs, by suffix."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in specs.items():
        match = _NUMBERED.fullmatch(key)
        if match is None:
            continue
        kind, suffix, name = match.groups()
        group = found.setdefault(
            suffix, {'resources': {}, 'required': [], 'forbidden': []}
        )
        if kind == 'trait' and value in ('required', 'forbidden'):
            group[value].append(name)
        elif kind == 'resources' and _is_amount(value):
            group['resources'][name] = int(value)
        else:
            parts.refuse(f'flavor.extra_specs.{key}', f'{value[:40]!r} is')
    return found


def _is_amount(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= 15


def _next_number(found: Mapping[str, Any]) -> str:
    numbers = [int(one) for one in found if one.isascii() and one.isdigit()]
    return str(max(numbers, default=0) + 1)


def placed_devices(spec: wire.RequestSpec) -> frozenset[str]:
    """Return the requests for PCI devices that groups stand for, by id."""
    return frozenset(
        str(one.get('requester_id')).rpartition('-')[0]
        for one in spec.requested_resources or ()
        if one.get('requester_id')
    )
