"""The host filter ImagePropertiesFilter."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.support.image_requirements import (
    ImageRequirements,
    dotted_version,
    has_address_bits,
    image_requirements,
    is_supported,
    version_clauses,
    version_matches,
)
from scheduler_service.filters.support.unreadable import (
    where_readable,
    why_unreadable,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class ImagePropertiesFilter(HostFilter):
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

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Evaluate each distinct value of the hosts' columns once."""
        required = image_requirements(request, settings)
        names = required.supported
        if not names:
            return None
        passed = table.coded['supported_instances'].mask_where(
            where_readable(lambda text: is_supported(text, names))
        )
        if required.version:
            clauses = version_clauses(required.version)
            passed &= table.coded['hypervisor_version'].mask_where(
                lambda version: version_matches(version, clauses)
            )
        bits = required.address_bits
        if bits:
            passed &= table.coded['cpu_info'].mask_where(
                where_readable(lambda text: has_address_bits(text, bits))
            )
        return passed

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return what the image requires, None where no name counts."""
        required = image_requirements(request, settings)
        return tuple(required) if required.supported else None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say what the image requires, and what the host supports."""
        required = image_requirements(request, settings)
        why = _why_unreadable(table, row, required)
        if why:
            return why
        requirements = ', '.join(str(value) for value in required if value)
        text = table.coded['supported_instances'].at(row) or b'[]'
        version = table.coded['hypervisor_version'].at(row)
        shown = dotted_version(version) if version else 'not reported'
        return (
            f'the image requires {requirements}; the host supports '
            f'{text.decode()}, hypervisor version {shown}'
        )


def _why_unreadable(
    table: HostTable, row: int, required: ImageRequirements
) -> str:
    """Return what of the host cannot be read, '' where all can."""
    why = why_unreadable(
        lambda text: is_supported(text, required.supported),
        'supported_instances',
        table.coded['supported_instances'].at(row),
    )
    bits = required.address_bits
    if bits and not why:
        why = why_unreadable(
            lambda text: has_address_bits(text, bits),
            'cpu_info',
            table.coded['cpu_info'].at(row),
        )
    return why
