"""SimpleCIDRAffinityFilter."""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable

from scheduler_service.columns.codes import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


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

        def inside(address: str | None) -> bool:
            if address is None:
                raise ValueError('a host has no address')
            return ipaddress.ip_address(address) in network

        return table.coded['host_ip'].where(inside)

    def shape(self, request: Request, settings: Settings) -> Hashable:
        """The network."""
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
