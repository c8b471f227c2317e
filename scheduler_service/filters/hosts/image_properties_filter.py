"""The host filter ImagePropertiesFilter."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import (
    KeyFilter,
    where_readable,
    why_unreadable,
)
from scheduler_service.model import Request
from scheduler_service.model import image_properties as images
from scheduler_service.model.requirements.specs import reading, refusal
from scheduler_service.settings import Settings


class ImagePropertiesFilter(KeyFilter):
    """Passes hosts that can run the image.

    One of the host's ``supported_instances`` has to have the image's
    architecture, hypervisor type and virtual machine mode. An image that
    requires none of the three passes everywhere. Otherwise the hypervisor's
    version has to match ``img_hv_requested_version``, too, and the CPU's
    address bits have to be at least ``hw_maxphysaddr_bits``, each where both
    the image and the host state it. A host fails where what it states cannot
    be read.
    """

    once = True
    rebuild = True

    def passing(self, table: HostTable, key: ImageRequirements) -> Mask:
        names, bits = key.supported, key.address_bits
        passed = table.coded['supported_instances'].mask_where(
            where_readable(lambda text: is_supported(text, names))
        )
        if key.version:
            clauses = version_clauses(key.version)
            passed &= table.coded['hypervisor_version'].mask_where(
                lambda version: version_matches(version, clauses)
            )
        if bits:
            passed &= table.coded['cpu_info'].mask_where(
                where_readable(lambda text: has_address_bits(text, bits))
            )
        return passed

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        required = image_requirements(request, settings)
        return required if required.supported else None

    def failure(
        self, table: HostTable, row: int, key: ImageRequirements
    ) -> str:
        bits = key.address_bits
        why = why_unreadable(
            is_supported,
            'supported_instances',
            table.coded['supported_instances'].at(row),
            key.supported,
        )
        if bits and not why:
            info = table.coded['cpu_info'].at(row)
            why = why_unreadable(has_address_bits, 'cpu_info', info, bits)
        if why:
            return why
        requirements = ', '.join(str(value) for value in key if value)
        text = table.coded['supported_instances'].at(row) or b'[]'
        version = table.coded['hypervisor_version'].at(row)
        shown = dotted_version(version) if version else 'not reported'
        return (
            f'the image requires {requirements}; the host supports '
            f'{text.decode()}, hypervisor version {shown}'
        )


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
    """The requirements of an image, in canonical names; None: not required.

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
    """Return whether one supported instance type has all required names.

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
    """Return whether a hypervisor's version satisfies all clauses.

    A host that does not report its version satisfies them.
    """
    if not version:
        return True
    own = _version(dotted_version(version))
    return all(_OPERATORS[sign](own, other) for sign, other in clauses)


def has_address_bits(text: bytes | None, required: int) -> bool:
    """Return whether a CPU has the address bits, or does not report them.

    :param text: the host's ``cpu_info``: JSON, or JSON in a JSON string
    """
    info = msgspec.json.decode(text) if text else None
    if isinstance(info, str):
        info = msgspec.json.decode(info) if info else None
    size = info.get('maxphysaddr') if isinstance(info, dict) else None
    bits = size.get('bits') if isinstance(size, dict) else None
    return bits is None or int(bits) >= required
