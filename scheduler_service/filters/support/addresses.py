"""IP addresses as columns of numbers, and which lie in a network."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Sequence
from typing import Any

import numpy as np

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_LOW_64_BITS = 2**64 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Addresses:
    """Distinct addresses as numbers, each array with one element for each.

    :ivar version: int64, 4 or 6
    :ivar high: uint64, the high 64 bits
    :ivar low: uint64, the low 64 bits
    :ivar invalid: whether any address was missing or not valid; the arrays
        then leave it out
    """

    version: np.ndarray[Any, Any]
    high: np.ndarray[Any, Any]
    low: np.ndarray[Any, Any]
    invalid: bool

    @classmethod
    def parse(cls, texts: Sequence[str | None]) -> Addresses:
        """Parse addresses of both versions."""
        parsed = [_address(text) for text in texts]
        valid = [address for address in parsed if address is not None]
        numbers = [int(address) for address in valid]
        return cls(
            np.array([address.version for address in valid], np.int64),
            np.array([number >> 64 for number in numbers], np.uint64),
            np.array([number & _LOW_64_BITS for number in numbers], np.uint64),
            len(valid) < len(parsed),
        )

    def inside(self, network: Network) -> np.ndarray[Any, Any]:
        """Return whether each address is in a network, bool."""
        mask, base = int(network.netmask), int(network.network_address)
        inside: np.ndarray[Any, Any] = (
            (self.version == network.version)
            & (self.high & np.uint64(mask >> 64) == np.uint64(base >> 64))
            & (
                self.low & np.uint64(mask & _LOW_64_BITS)
                == np.uint64(base & _LOW_64_BITS)
            )
        )
        return inside


def _address(
    text: str | None,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text) if text else None
    except ValueError:
        return None
