"""Builds the pages; each shows what a resource of ``/v1`` returns."""

from __future__ import annotations

from scheduler_service import adapter as base
from scheduler_service.http.message import Reply
from scheduler_service.http.routes import Pages
from scheduler_service.http.v1 import V1
from scheduler_service.pages.decisions import DecisionPages
from scheduler_service.pages.frame import Frame
from scheduler_service.scheduler import Scheduler

# The page of the daemon's address.
_FIRST = Reply(302, b'', headers=(('Location', '/decisions'),))


class Adapter(base.Adapter):
    """Serves pages to browsers."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._frame = Frame(scheduler)

    def pages(self, api: V1) -> Pages:
        """Return the pages, and the files that they load."""
        frame = self._frame
        decisions = DecisionPages(frame, api)
        routes = [
            frame.route('/', lambda _: _FIRST),
            frame.route('/decisions', decisions.listing),
            *frame.static_routes(),
        ]
        return Pages(routes, frame.show_error)
