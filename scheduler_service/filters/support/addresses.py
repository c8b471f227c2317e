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

    :ivar version: int64, 4 or 6; 0 where there is no valid address
    :ivar high: uint64, the high 64 bits
    :ivar low: uint64, the low 64 bits
    """

    version: np.ndarray[Any, Any]
    high: np.ndarray[Any, Any]
    low: np.ndarray[Any, Any]

    @classmethod
    def parse(cls, texts: Sequence[str | None]) -> Addresses:
        """Parse addresses of both versions."""
        parsed = [_address(text) for text in texts]
        numbers = [0 if one is None else int(one) for one in parsed]
        versions = [0 if one is None else one.version for one in parsed]
        return cls(
            np.array(versions, np.int64),
            np.array([number >> 64 for number in numbers], np.uint64),
            np.array([number & _LOW_64_BITS for number in numbers], np.uint64),
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


def is_address(text: str | None) -> bool:
    """Say whether a text is a valid address."""
    return _address(text) is not None


def _address(
    text: str | None,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text) if text else None
    except ValueError:
        return None
