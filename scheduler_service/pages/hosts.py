"""Pages about hosts: lists of them, and all about one."""

from __future__ import annotations

import dataclasses
from typing import Any
from urllib import parse

from scheduler_service import errors
from scheduler_service.http.message import HttpRequest, Reply
from scheduler_service.http.v1 import HOST_CRITERIA, named
from scheduler_service.pages.frame import Frame, without_empty

# Rows of a page.
_HOSTS = 200
# The newest requests that no host could take. The time limits how many
# decisions are read where none was refused.
_REFUSALS = 'outcome=NoValidHost&since=1d&limit=10'


def listing(frame: Frame, request: HttpRequest) -> Reply:
    """List the hosts that match."""
    wanted = without_empty(request, HOST_CRITERIA)
    sent = dict(parse.parse_qsl(wanted.query))
    if 'limit' not in sent:
        wanted.query += f'&limit={_HOSTS}'
    found = frame.api.hosts(wanted, b'')
    return frame.page(
        'hosts.html', sent=sent, size=int(sent.get('limit', _HOSTS)),
        **found,
    )  # fmt: skip


def host(frame: Frame, request: HttpRequest) -> Reply:
    """Show a host, its claims and what was last decided about it."""

    def read() -> dict[str, Any]:
        shown = frame.api.host(request, b'')
        # The filters of these judged this host, too.
        asked = dataclasses.replace(request, query=_REFUSALS)
        return {**shown, 'refused': frame.api.decisions(asked, b'')}

    name = named(request, 'name')
    found, missing = frame.stored(read)
    if found is None:
        found = frame.listings.in_memory(name)
        if not found['resources']:
            raise errors.StoreUnavailable(missing)
    return frame.page('host.html', name=name, missing=missing, **found)
