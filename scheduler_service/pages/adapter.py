"""Builds the pages; each shows what a resource of ``/v1`` returns."""

from __future__ import annotations

from scheduler_service import adapter as base
from scheduler_service.http.routes import Pages
from scheduler_service.http.v1 import V1
from scheduler_service.pages.decisions import DecisionPages
from scheduler_service.pages.frame import Frame
from scheduler_service.pages.hosts import HostPages
from scheduler_service.pages.start import StartPages
from scheduler_service.pages.trial import TryPage
from scheduler_service.scheduler import Scheduler


class Adapter(base.Adapter):
    """Serves pages to browsers."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._frame = Frame(scheduler)

    def pages(self, api: V1) -> Pages:
        """Return the pages, and the files that they load."""
        frame, listings = self._frame, self._scheduler.listings
        decisions = DecisionPages(frame, api, listings)
        hosts = HostPages(frame, api, listings)
        start = StartPages(frame, api, self._scheduler)
        served = {
            '/': start.start,
            '/decisions': decisions.listing,
            '/decisions/{request_id}': decisions.decision,
            '/try': TryPage(frame, api, listings).page,
            '/cloud': hosts.cloud,
            '/cloud.png': hosts.image,
            '/cloud/{block}': hosts.cell,
            '/hosts': hosts.listing,
            '/hosts/{name}': hosts.host,
            '/fit': start.fit,
            '/daemons': start.listing(
                'Daemons', 'list_daemons', listings.daemons
            ),
            '/pools': start.listing('Pools', 'list_hosts', listings.pools),
            '/dns-zones': start.listing(
                'DNS zones', 'list_hosts', listings.dns_zones
            ),
        }
        routes = [frame.route(path, serve) for path, serve in served.items()]
        return Pages([*routes, *frame.static_routes()], frame.show_error)
