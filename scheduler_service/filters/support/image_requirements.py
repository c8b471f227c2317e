"""What an image requires of the hypervisor, and hosts that satisfy it."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from scheduler_service.filters.support.requested import reading, refusal
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
_BITS = 'hw_maxphysaddr_bits'
_CLAUSE = re.compile(r'^\s*(<=|>=|==|!=|<|>)\s*([0-9]+(?:\.[0-9]+)*)\s*$')
Version = tuple[int, ...]
VersionClauses = list[tuple[str, Version]]


class ImageRequirements(NamedTuple):
    """What an image requires of a host, in canonical names; None: nothing.

    :ivar version: predicate on the hypervisor's version, ``>=6.0,<6.2``
    :ivar address_bits: physical address bits of the CPU, at least
    """

    architecture: str | None
    hypervisor: str | None
    mode: str | None
    version: str | None
    address_bits: int | None

    @property
    def supported(self) -> frozenset[str]:
        """The names that one supported instance type must have."""
        names = (self.architecture, self.hypervisor, self.mode)
        return frozenset(name for name in names if name)


def image_requirements(
    request: Request, settings: Settings
) -> ImageRequirements:
    """Return what the image of a request requires.

    :raises InvalidRequest: ``hw_maxphysaddr_bits`` is not a number
    """
    properties = request.image_properties
    architecture = images.first(properties, 'hw_architecture', 'architecture')
    architecture = (
        architecture or settings.image_properties_default_architecture
    )
    hypervisor = images.first(properties, 'img_hv_type', 'hypervisor_type')
    mode = images.first(properties, 'hw_vm_mode', 'vm_mode')
    version = images.first(
        properties, 'img_hv_requested_version', 'hypervisor_version_requires'
    )
    bits = images.first(properties, _BITS)
    with reading(f'image.properties.{_BITS}', 'a number of bits', bits):
        bits = int(bits) if bits else None
    return ImageRequirements(
        images.architecture(str(architecture)) if architecture else None,
        images.hypervisor(str(hypervisor)) if hypervisor else None,
        images.mode(str(mode)) if mode else None,
        str(version) if version else None,
        bits,
    )


def is_supported(text: bytes | None, required: frozenset[str]) -> bool:
    """Say whether one supported instance type has all required names.

    A name may stand in any of the three places of the entry.

    :param text: the host's ``supported_instances``, JSON
    """
    return any(
        required
        <= {_canonical(place, name) for place, name in enumerate(entry)}
        for entry in msgspec.json.decode(text or b'[]')
    )


def _canonical(place: int, name: str | None) -> str | None:
    if name is None:
        return None
    canonical = (images.architecture, images.hypervisor, images.mode)
    return canonical[place](name) if place < len(canonical) else name


def version_clauses(text: str) -> VersionClauses:
    """Parse a version predicate such as ``>=6.0,<6.2``.

    :raises InvalidRequest: a clause is not an operator with a version
    """
    clauses = []
    for clause in text.split(','):
        match = _CLAUSE.match(clause)
        if match is None:
            raise refusal(
                'image.properties.img_hv_requested_version',
                'operators with versions, such as >=6.0,<6.2',
                text,
            )
        clauses.append((match[1], _version(match[2])))
    return clauses


def dotted_version(version: int) -> str:
    """Return a version as hosts report it, 8002000, as 8.2.0."""
    return f'{version // 1000000}.{version // 1000 % 1000}.{version % 1000}'


def _version(dotted: str) -> Version:
    """Return a version's numbers without trailing zeros: 6.0 equals 6."""
    numbers = [int(part) for part in dotted.split('.')]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def version_matches(version: int | None, clauses: VersionClauses) -> bool:
    """Say whether a hypervisor's version satisfies all clauses.

    A host that does not report its version satisfies them.
    """
    if not version:
        return True
    own = _version(dotted_version(version))
    return all(_OPERATORS[sign](own, other) for sign, other in clauses)


def has_address_bits(text: bytes | None, required: int) -> bool:
    """Say whether a CPU has the address bits, or does not report them.

    :param text: the host's ``cpu_info``: JSON, or JSON in a JSON string
    """
    info = msgspec.json.decode(text) if text else None
    if isinstance(info, str):
        info = msgspec.json.decode(info) if info else None
    size = info.get('maxphysaddr') if isinstance(info, dict) else None
    bits = size.get('bits') if isinstance(size, dict) else None
    return bits is None or int(bits) >= required
