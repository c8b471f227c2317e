"""The first page, what fits, and short lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib import parse

from scheduler_service import errors
from scheduler_service.http.message import HttpRequest, Reply
from scheduler_service.http.v1 import CAPACITY_CRITERIA, V1, parameters
from scheduler_service.model import Request
from scheduler_service.pages.frame import Frame, without_empty
from scheduler_service.scheduler import Scheduler


class StartPages:
    """Shows how the daemon is, and what the zones have room for."""

    def __init__(self, frame: Frame, api: V1, scheduler: Scheduler) -> None:
        self._frame = frame
        self._api = api
        self._scheduler = scheduler

    def start(self, request: HttpRequest) -> Reply:
        """Show what is refused, how fast, and what is wrong."""
        parameters(request)
        for rule in ('ping', 'list_decisions', 'list_daemons'):
            self._api.authorize(request, rule)
        stored, missing = None, ''
        try:
            stored = self._scheduler.listings.overview()
        except errors.StoreUnavailable as fault:
            missing = str(fault.args[0])
        return self._frame.page(
            'start.html',
            stored=stored,
            missing=missing,
            recent=self._scheduler.introspection.recent(),
            engine=self._scheduler.status(),
        )

    def fit(self, request: HttpRequest) -> Reply:
        """Show how many more of each flavor fit where."""
        wanted = without_empty(request, CAPACITY_CRITERIA)
        found = self._api.capacity(wanted, b'')
        sent = dict(parse.parse_qsl(wanted.query))
        flavors: list[Any] = []
        missing = ''
        if 'flavor' not in sent:
            listings = self._scheduler.listings
            try:
                flavors = [
                    (flavor, times, *listings.fits(_of(flavor, sent), 'zone'))
                    for flavor, times in listings.flavors()
                ]
            except errors.StoreUnavailable as fault:
                missing = str(fault.args[0])
        return self._frame.page(
            'fit.html',
            flavors=flavors,
            missing=missing,
            sent=sent,
            query=wanted.query,
            **found,
        )

    def listing(
        self, title: str, rule: str, rows: Callable[[], list[Any]]
    ) -> Callable[[HttpRequest], Reply]:
        """Return what serves a short list; *rule* is of the policy."""

        def serve(request: HttpRequest) -> Reply:
            self._api.authorize(request, rule)
            parameters(request)
            return self._frame.page('list.html', title=title, rows=rows())

        return serve


def _of(flavor: Any, sent: dict[str, str]) -> Request:
    return Request(flavor=flavor, availability_zone=sent.get('zone'))
