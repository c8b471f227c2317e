"""The host filter IsolatedHostsFilter."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class IsolatedHostsFilter(HostFilter):
    """Keeps isolated images on isolated hosts, and other images off them.

    ``isolated_images`` lists ids of images, ``isolated_hosts`` lists hosts.
    Isolated images pass isolated hosts only. Other images pass all other
    hosts; without ``restrict_isolated_hosts_to_isolated_images`` they pass
    isolated hosts, too.
    """

    once = True
    rebuild = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        isolated = table.mask_of(table.rows_of_hosts(settings.isolated_hosts))
        if _is_isolated(request, settings):
            return isolated
        if settings.restrict_isolated_hosts_to_isolated_images:
            return ~isolated
        return None

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        isolated = _is_isolated(request, settings)
        if not isolated and not settings.isolated_hosts:
            return None
        return (isolated,)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        if table.host_at(row) in settings.isolated_hosts:
            return 'the host is isolated, the image is not'
        return 'the image is isolated, the host is not'


def _is_isolated(request: Request, settings: Settings) -> bool:
    image_id = request.image.id if request.image else None
    return image_id is not None and image_id in settings.isolated_images
