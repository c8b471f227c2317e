"""The first page, what fits, and short lists."""

from __future__ import annotations

from typing import Any
from urllib import parse

from scheduler_service.http.message import HttpRequest, Reply
from scheduler_service.http.v1 import (
    CAPACITY_CRITERIA,
    SHADOW_CRITERIA,
    parameters,
)
from scheduler_service.model import Request
from scheduler_service.pages.frame import Frame, without_empty


def overview(frame: Frame, request: HttpRequest) -> Reply:
    """Show what is refused, how fast, and what is wrong."""
    parameters(request)
    for rule in ('ping', 'list_decisions', 'list_daemons'):
        frame.api.authorize(request, rule)
    stored, missing = frame.stored(frame.listings.overview)
    return frame.page(
        'start.html', stored=stored, missing=missing,
        recent=frame.scheduler.introspection.recent(),
        engine=frame.scheduler.status(),
    )  # fmt: skip


def fit(frame: Frame, request: HttpRequest) -> Reply:
    """Show how many more of each flavor fit where."""
    wanted = without_empty(request, CAPACITY_CRITERIA)
    found = frame.api.capacity(wanted, b'')
    sent = dict(parse.parse_qsl(wanted.query))
    listings, flavors, missing = frame.listings, None, ''
    if 'flavor' not in sent:
        flavors, missing = frame.stored(listings.flavors)
    fitting = [
        (flavor, times, *listings.fits(
            Request(flavor=flavor, availability_zone=sent.get('zone')), 'zone'
        ))
        for flavor, times in flavors or ()
    ]  # fmt: skip
    return frame.page(
        'fit.html', flavors=fitting, missing=missing, sent=sent,
        query=wanted.query, **found,
    )  # fmt: skip


def daemons(frame: Frame, request: HttpRequest) -> Reply:
    """List the daemons."""
    return _list(frame, 'Daemons', frame.api.daemons(request, b'')['daemons'])


def shadow(frame: Frame, request: HttpRequest) -> Reply:
    """Show how decisions of a shadow compare with another scheduler's."""
    found = frame.api.shadow(without_empty(request, SHADOW_CRITERIA), b'')
    return _list(frame, found['summary'], found['shadow'])


def pools(frame: Frame, request: HttpRequest) -> Reply:
    """List the pools."""
    _check(frame, request)
    return _list(frame, 'Pools', frame.listings.pools())


def dns_zones(frame: Frame, request: HttpRequest) -> Reply:
    """List the DNS zones."""
    _check(frame, request)
    return _list(frame, 'DNS zones', frame.listings.dns_zones())


def _check(frame: Frame, request: HttpRequest) -> None:
    frame.api.authorize(request, 'list_hosts')
    parameters(request)


def _list(frame: Frame, title: str, rows: list[dict[str, Any]]) -> Reply:
    return frame.page('list.html', title=title, rows=rows)
