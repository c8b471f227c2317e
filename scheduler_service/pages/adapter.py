"""Builds the pages; each shows what a resource of ``/v1`` returns."""

from __future__ import annotations

from typing import Any

from scheduler_service import adapter as base
from scheduler_service.http.routes import Pages
from scheduler_service.http.v1 import V1
from scheduler_service.pages import decisions, hosts, start, trial, why
from scheduler_service.pages.frame import Frame
from scheduler_service.scheduler import Scheduler

_PAGES = {
    '/': start.overview,
    '/decisions': decisions.listing,
    '/decisions/{request_id}': decisions.decision,
    '/try': trial.page,
    '/cloud': hosts.cloud,
    '/cloud.png': hosts.image,
    '/cloud/{block}': hosts.cell,
    '/hosts': hosts.listing,
    '/hosts/{name}': hosts.host,
    '/fit': start.fit,
    '/daemons': start.daemons,
    '/shadow': start.shadow,
    '/pools': start.pools,
    '/dns-zones': start.dns_zones,
}


class Adapter(base.Adapter):
    """Serves pages to browsers."""

    def __init__(self, conf: Any, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._why = why.Why(conf)

    def pages(self, api: V1) -> Pages:
        """Return the pages, and the files that they load."""
        frame = Frame(self._scheduler, api)
        pages = {**_PAGES, why.PATH: self._why.page}
        return Pages(frame.routes(pages), frame.show_error)
