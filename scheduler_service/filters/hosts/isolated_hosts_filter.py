"""IsolatedHostsFilter."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class IsolatedHostsFilter(HostFilter):
    """Keeps isolated images on isolated hosts, and others off them.

    ``isolated_images`` and ``isolated_hosts`` name both. Isolated images
    pass isolated hosts alone; other images pass the other hosts, and
    isolated ones too unless
    ``restrict_isolated_hosts_to_isolated_images``.
    """

    once = True
    rebuild = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Look the few isolated hosts up."""
        image = request.image.id if request.image else None
        isolated = table.mask_of(table.rows_of_hosts(settings.isolated_hosts))
        if image is not None and image in settings.isolated_images:
            return isolated
        if not settings.isolated_hosts:
            return None
        if settings.restrict_isolated_hosts_to_isolated_images:
            return ~isolated
        return None

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return whether the image is isolated."""
        image = request.image.id if request.image else None
        isolated = image is not None and image in settings.isolated_images
        if not isolated and not settings.isolated_hosts:
            return None
        return (isolated,)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say which of the two is isolated."""
        if table.host_at(row) in settings.isolated_hosts:
            return 'the host is isolated, the image is not'
        return 'the image is isolated, the host is not'
