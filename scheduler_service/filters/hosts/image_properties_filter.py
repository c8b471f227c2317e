"""ImagePropertiesFilter."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.model import image_properties as images
from scheduler_service.settings import Settings

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    '<': operator.lt,
    '<=': operator.le,
    '==': operator.eq,
    '>=': operator.ge,
    '>': operator.gt,
    '!=': operator.ne,
}
_CLAUSE = re.compile(r'^\s*(<=|>=|==|!=|<|>)\s*([0-9]+(?:\.[0-9]+)*)\s*$')


class _Wanted(NamedTuple):
    """What an image asks of a host, in canonical names."""

    architecture: str | None
    hypervisor: str | None
    mode: str | None
    version: str | None
    bits: int | None


class ImagePropertiesFilter(HostFilter):
    """Passes hosts that can run the image.

    One of the host's ``supported_instances`` has to have the image's
    architecture, hypervisor type and virtual machine mode; then the
    hypervisor's version has to satisfy ``img_hv_requested_version``, and the
    address bits ``hw_maxphysaddr_bits``, where both sides say anything. An
    image that asks for none of the three passes everywhere.
    """

    once = True
    rebuild = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Judge each distinct list of supported instances once."""
        wanted = _wanted(request, settings)
        if not any(wanted[:3]):
            return None
        passed = table.coded['supported_instances'].mask_where(
            lambda text: _supports(text, wanted)
        )
        if wanted.version:
            clauses = _clauses(wanted.version)
            versions = table.coded['hypervisor_version']
            passed &= versions.mask_where(lambda v: _in_version(v, clauses))
        if wanted.bits:
            bits = wanted.bits
            passed &= table.coded['cpu_info'].mask_where(
                lambda text: _has_bits(text, bits)
            )
        return passed

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return what the image asks for."""
        wanted = _wanted(request, settings)
        return tuple(wanted) if any(wanted[:3]) else None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say what the image asks for, and what the host has."""
        wanted = _wanted(request, settings)
        asked = ', '.join(str(one) for one in wanted if one)
        text = table.coded['supported_instances'].at(row) or b'[]'
        version = table.coded['hypervisor_version'].at(row)
        return (
            f'the image asks {asked}; the host supports {text.decode()}'
            f', version {version}'
        )


def _wanted(request: Request, settings: Settings) -> _Wanted:
    properties = request.image_properties
    arch = images.first(properties, 'hw_architecture', 'architecture')
    arch = arch or settings.image_properties_default_architecture
    hypervisor = images.first(properties, 'img_hv_type', 'hypervisor_type')
    mode = images.first(properties, 'hw_vm_mode', 'vm_mode')
    version = images.first(
        properties, 'img_hv_requested_version', 'hypervisor_version_requires'
    )
    bits = images.first(properties, 'hw_maxphysaddr_bits')
    return _Wanted(
        images.architecture(str(arch)) if arch else None,
        images.hypervisor(str(hypervisor)) if hypervisor else None,
        images.mode(str(mode)) if mode else None,
        str(version) if version else None,
        int(bits) if bits else None,
    )


def _supports(text: bytes | None, wanted: _Wanted) -> bool:
    """Whether some entry holds all that is wanted, in whichever place."""
    asked = {one for one in wanted[:3] if one}
    return any(
        asked <= {_canonical(at, one) for at, one in enumerate(entry)}
        for entry in msgspec.json.decode(text or b'[]')
    )


def _canonical(at: int, value: str | None) -> str | None:
    if value is None:
        return None
    kinds = (images.architecture, images.hypervisor, images.mode)
    return kinds[at](value) if at < len(kinds) else value


def _clauses(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """Parse ``>=6.0,<6.2``.

    :raises ValueError: a clause is no operator with a version
    """
    found = []
    for clause in text.split(','):
        match = _CLAUSE.match(clause)
        if match is None:
            raise ValueError(f'{clause!r} is no version predicate')
        found.append((match[1], _parts(match[2])))
    return found


def _parts(version: str) -> tuple[int, ...]:
    """Return a version's numbers, trailing zeros left out."""
    numbers = [int(part) for part in version.split('.')]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _in_version(
    version: int | None, clauses: list[tuple[str, tuple[int, ...]]]
) -> bool:
    """Whether a version as hosts report it (8002000) is in all clauses."""
    if not version:
        return True
    dotted = f'{version // 1000000}.{version // 1000 % 1000}.{version % 1000}'
    own = _parts(dotted)
    return all(_OPERATORS[sign](own, asked) for sign, asked in clauses)


def _has_bits(text: bytes | None, wanted: int) -> bool:
    """Whether a host's CPU has the address bits, or does not say."""
    info = msgspec.json.decode(text) if text else None
    if isinstance(info, str):
        info = msgspec.json.decode(info) if info else None
    size = info.get('maxphysaddr') if isinstance(info, dict) else None
    bits = size.get('bits') if isinstance(size, dict) else None
    return bits is None or int(bits) >= wanted
