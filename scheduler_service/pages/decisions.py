"""Pages about decisions: the newest ones, and what led to one."""

from __future__ import annotations

from scheduler_service.http.message import HttpRequest, Reply
from scheduler_service.http.v1 import CRITERIA, V1
from scheduler_service.pages.frame import Frame, without_empty


class DecisionPages:
    """Shows what ``/v1/decisions`` returns."""

    def __init__(self, frame: Frame, api: V1) -> None:
        self._frame = frame
        self._api = api

    def listing(self, request: HttpRequest) -> Reply:
        """Show the newest decisions that match."""
        wanted = without_empty(request, CRITERIA)
        found = self._api.decisions(wanted, b'')
        return self._frame.page('decisions.html', **found)
