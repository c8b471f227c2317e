"""The host filter SimpleCIDRAffinityFilter."""

from __future__ import annotations

import ipaddress

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.support.addresses import (
    Addresses,
    Network,
    is_address,
)
from scheduler_service.filters.support.requested import reading, refusal
from scheduler_service.filters.support.unreadable import UNREADABLE
from scheduler_service.model import Request
from scheduler_service.settings import Settings

_NEAR = 'scheduler_hints.build_near_host_ip'
_CIDR = 'scheduler_hints.cidr'
_SIZE = 'the size of a network, such as /24'


class SimpleCIDRAffinityFilter(HostFilter):
    """Passes hosts in the network around the hint ``build_near_host_ip``.

    The hint ``cidr`` gives the size of the network, with or without the
    slash; ``/24`` where it is absent. Without ``build_near_host_ip`` every
    host passes. A host without a valid address fails.
    """

    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Compare all distinct addresses at once."""
        network = _network(request)
        if network is None:
            return None
        column = table.coded['host_ip']
        addresses: Addresses = table.topology.memoize(
            'addresses', lambda: Addresses.parse(column.values)
        )
        return column.expand(addresses.inside(network))

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the network, None where the hints name none."""
        return _network(request)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the host's address and the network."""
        address = table.coded['host_ip'].at(row)
        if not is_address(address):
            return f'{UNREADABLE}host_ip {address} is not an address'
        return f'{address} is not in {_network(request)}'


def _network(request: Request) -> Network | None:
    """Return the network of the hints, None where they name none.

    :raises InvalidRequest: the hints do not make a network
    """
    near = request.hint('build_near_host_ip')
    if near is None:
        return None
    cidr = request.scheduler_hints.get('cidr', '/24')
    if isinstance(cidr, list):
        cidr = cidr[0] if len(cidr) == 1 else cidr
    if cidr is None:
        cidr = '/24'
    if not isinstance(near, str) or '/' in near:
        raise refusal(_NEAR, 'an address', near)
    if not isinstance(cidr, str):
        raise refusal(_CIDR, _SIZE, cidr)
    with reading(_NEAR, 'an address', near):
        ipaddress.ip_address(near)
    slash = '' if not cidr or cidr.startswith('/') else '/'
    with reading(_CIDR, _SIZE, cidr):
        return ipaddress.ip_network(f'{near}{slash}{cidr}', strict=False)
