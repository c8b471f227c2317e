"""Zones and decisions of a cloud whose pages are measured."""

from __future__ import annotations

import uuid
from typing import Any

from benchmarks import common
from scheduler_service.model import Placement, Selection
from scheduler_service.store.connection import Store
from scheduler_service.store.records import decisions

_FILTERS = 'AvailabilityZoneFilter', 'ComputeFilter', 'CoreFilter', 'RamFilter'
_PART = 1000
_PROJECTS = 50
_FLAVORS = 10


def with_zones(document: dict[str, Any], zones: int = 3) -> dict[str, Any]:
    """Return an inventory with an aggregate for each of several zones."""
    names = [host['host'] for host in document['hosts']]
    aggregates = [
        {
            'id': 1000 + number,
            'name': f'zone-{number}',
            'hosts': names[number::zones],
            'metadata': {'availability_zone': f'zone-{number}'},
        }
        for number in range(zones)
    ]
    return {**document, 'aggregates': aggregates}


def instance(number: int) -> str:
    """Return the uuid of the instance of a decision."""
    return str(uuid.UUID(int=number))


def decision(number: int, hosts: int) -> decisions.Decision:
    """Return a decision as daemons store them; one in ten is a refusal."""
    refused = not number % 10
    ends = [hosts // 3, hosts // 4, hosts // 9, 0 if refused else hosts // 99]
    funnel = [
        {'filter': name, 'start': start, 'end': end}
        for name, start, end in zip(
            _FILTERS, [hosts, *ends], ends, strict=False
        )
    ]
    facts = {'funnel': funnel, 'hosts': hosts, 'filters': [
        {'filter': name, 'out': 9, 'alone': 1, 'reason': 'x' * 80}
        for name in _FILTERS
    ]}  # fmt: skip
    name = common.host_name(number % hosts)
    size = 1 + number % _FLAVORS
    flavor = {'name': f'm{size}', 'vcpus': size, 'memory_mb': 2048 * size}
    why: dict[str, Any] = {
        'project_id': f'project-{number % _PROJECTS}',
        'request': {'flavor': flavor},
    }
    if refused:
        why['instance_uuids'] = [instance(number)]
        why['error'] = {
            'name': 'NoValidHost', 'message': 'No valid host was found.',
            'code': 404, 'facts': facts,
        }  # fmt: skip
    else:
        selected = Selection(host=name, node=name, uuid='', zone='zone-1')
        why['placements'] = [
            Placement(
                instance_uuid=instance(number),
                selected=selected,
                alternates=[selected] * 3,
            )
        ]
        why['explanation'] = {**facts, 'passed': hosts // 99}
    outcome = 'NoValidHost' if refused else 'chosen'
    return decisions.Decision(
        f'req-{number}', 'select_destinations', outcome, why
    )


def store_decisions(database: str, count: int, hosts: int) -> None:
    """Store decisions, a thousand in a transaction."""
    store = Store.connect(database)
    for first in range(0, count, _PART):
        part = [
            decision(number, hosts)
            for number in range(first, min(first + _PART, count))
        ]
        store.write(lambda writer, part=part: decisions.record(writer, part))
    store.dispose()
