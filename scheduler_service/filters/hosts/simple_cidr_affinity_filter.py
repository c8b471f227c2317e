"""SimpleCIDRAffinityFilter."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_LOW = 2**64 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class _Addresses:
    """Distinct addresses as numbers, high and low 64 bits; by version."""

    version: np.ndarray[Any, Any]
    high: np.ndarray[Any, Any]
    low: np.ndarray[Any, Any]
    missing: bool

    @classmethod
    def of(cls, texts: Sequence[str | None]) -> _Addresses:
        """Parse each once."""
        parsed = [_address(text) for text in texts]
        good = [one for one in parsed if one is not None]
        numbers = [int(one) for one in good]
        return cls(
            np.array([one.version for one in good], np.int64),
            np.array([one >> 64 for one in numbers], np.uint64),
            np.array([one & _LOW for one in numbers], np.uint64),
            len(good) < len(parsed),
        )

    def inside(self, network: _Network) -> np.ndarray[Any, Any]:
        """Return which addresses are in a network, bool by address."""
        mask, base = int(network.netmask), int(network.network_address)
        found: np.ndarray[Any, Any] = (
            (self.version == network.version)
            & (self.high & np.uint64(mask >> 64) == np.uint64(base >> 64))
            & (self.low & np.uint64(mask & _LOW) == np.uint64(base & _LOW))
        )
        return found


def _address(
    text: str | None,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text) if text else None
    except ValueError:
        return None


class SimpleCIDRAffinityFilter(HostFilter):
    """Passes hosts in the network around ``build_near_host_ip``.

    The hint ``cidr`` says how large it is, ``/24`` if absent, with or
    without the slash. Without ``build_near_host_ip`` every host passes.
    """

    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Judge each distinct address once."""
        network = _network(request)
        if network is None:
            return None
        column = table.coded['host_ip']
        known: _Addresses = table.topology.memoize(
            'addresses', lambda: _Addresses.of(column.values)
        )
        if known.missing:
            raise ValueError('a host has no address, or not a valid one')
        return column.expand(known.inside(network))

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the network."""
        return _network(request)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the address and the network."""
        address = table.coded['host_ip'].at(row)
        return f'{address} is not in {_network(request)}'


def _network(request: Request) -> _Network | None:
    """Return the network of the hints, None where they name none.

    :raises ValueError: they name none that there could be
    """
    near = request.hint('build_near_host_ip')
    if near is None:
        return None
    cidr = request.scheduler_hints.get('cidr', '/24')
    if isinstance(cidr, list):
        cidr = cidr[0] if len(cidr) == 1 else cidr
    if cidr is None:
        cidr = '/24'
    if not isinstance(near, str) or not isinstance(cidr, str) or '/' in near:
        raise ValueError(f'{near}{cidr} is no network')
    slash = '' if not cidr or cidr.startswith('/') else '/'
    return ipaddress.ip_network(f'{near}{slash}{cidr}', strict=False)
