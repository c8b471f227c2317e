"""The host filter SimpleCIDRAffinityFilter."""

from __future__ import annotations

import ipaddress
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import UNREADABLE, KeyFilter
from scheduler_service.model import Request
from scheduler_service.model.requirements.specs import reading, refusal
from scheduler_service.settings import Settings

_NEAR = 'scheduler_hints.build_near_host_ip'
_CIDR = 'scheduler_hints.cidr'
_SIZE = 'the size of a network, such as /24'


class SimpleCIDRAffinityFilter(KeyFilter):
    """Passes hosts in the network around the hint ``build_near_host_ip``.

    The hint ``cidr`` gives the size of the network, with or without the
    slash; ``/24`` where it is absent. Without ``build_near_host_ip`` every
    host passes. A host without a valid address fails.
    """

    once = True

    def passing(self, table: HostTable, key: Network) -> Mask:
        column = table.coded['host_ip']

        def parse() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
            parsed = [_address(text) for text in column.values]
            return (
                np.array([a.version if a else 0 for a in parsed], np.int64),
                np.array([int(a) if a else 0 for a in parsed], object),
            )

        versions, numbers = table.topology.memoize('addresses', parse)
        inside = numbers & int(key.netmask) == int(key.network_address)
        return column.expand(inside & (versions == key.version))

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        return _network(request)

    def failure(self, table: HostTable, row: int, key: Network) -> str:
        address = table.coded['host_ip'].at(row)
        if _address(address) is None:
            return f'{UNREADABLE}host_ip {address} is not an address'
        return f'{address} is not in {key}'


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


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _address(
    text: str | None,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text) if text else None
    except ValueError:
        return None
