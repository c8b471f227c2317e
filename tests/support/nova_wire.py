"""Messages that a real compute service sent, and messages like them.

The recordings lie beside the project. Where they are not at hand, a request
made here stands in for them, so that only what compares with them is skipped.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.paths import NOVA_WIRE

# Cases of the recordings with a request for hosts.
REQUESTS = ('simple', 'three', 'dicts', 'huge', 'full')
FANOUTS = ('agg', 'aggdel', 'info', 'del', 'sync')
CONTEXT = '_context_'


def case(name: str) -> dict[str, Any]:
    """Return a recorded case; the test is skipped where it is missing."""
    path = NOVA_WIRE / f'{name}.json'
    if not path.exists():
        pytest.skip(f'{path} is not at hand')
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def sent(name: str) -> dict[str, Any]:
    """Return the message that the caller of a case sent."""
    body: dict[str, Any] = case(name)['messages'][0]['body']['oslo.message']
    return body


def answered(name: str) -> dict[str, Any]:
    """Return the message that the caller of a case got."""
    body: dict[str, Any] = case(name)['messages'][1]['body']['oslo.message']
    return body


def context_of(message: dict[str, Any]) -> dict[str, Any]:
    """Return the context that travels with a message."""
    return {
        key.removeprefix(CONTEXT): value
        for key, value in message.items()
        if key.startswith(CONTEXT)
    }


def thing(name: str, version: str = '1.0', /, **data: Any) -> dict[str, Any]:
    """Return a versioned object."""
    return {
        'nova_object.name': name,
        'nova_object.namespace': 'nova',
        'nova_object.version': version,
        'nova_object.data': data,
    }


def flavor(**fields: Any) -> dict[str, Any]:
    """Return a Flavor of 2 vCPUs, 2048 MB and 20 GB."""
    size = {'vcpus': 2, 'memory_mb': 2048, 'root_gb': 20, 'flavorid': '1'}
    return thing('Flavor', '1.2', **{**size, **fields})


def spec(**fields: Any) -> dict[str, Any]:
    """Return a RequestSpec with a flavor, and with some fields."""
    return thing('RequestSpec', '1.15', **{'flavor': flavor(), **fields})
