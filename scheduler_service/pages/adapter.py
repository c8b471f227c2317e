"""Builds the pages; each shows what a resource of ``/v1`` returns."""

from __future__ import annotations

from typing import Any

from scheduler_service import adapter as base
from scheduler_service.http.routes import Pages
from scheduler_service.http.v1 import V1
from scheduler_service.pages import cloud, decisions, hosts, start, trial, why
from scheduler_service.pages.frame import Frame
from scheduler_service.scheduler import Scheduler

_PAGES = {
    '/': start.overview,
    '/decisions': decisions.listing,
    '/decisions/{request_id}': decisions.decision,
    '/try': trial.page,
    '/cloud': cloud.page,
    '/cloud.png': cloud.image,
    '/cloud/{block}': cloud.cell,
    '/hosts': hosts.listing,
    '/hosts/{name}': hosts.host,
    '/shadow': start.shadow,
    **dict.fromkeys(start.LISTS, start.listing),
}


class Adapter(base.Adapter):
    """Serves pages to browsers."""

    def __init__(self, conf: Any, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._why = why.Why(conf)

    def pages(self, api: V1) -> Pages:
        """Return the pages, and the files that they load."""
        frame = Frame(self._scheduler, api)
        of_hosts = dict.fromkeys(why.OF_HOSTS, self._why.of_host)
        pages = {**_PAGES, why.PATH: self._why.page, **of_hosts}
        return Pages(frame.routes(pages), frame.show_error)
