"""Requests that wait in a daemon."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.engine.jobs import Job


def test_request_is_refused_at_once_when_the_queue_is_full(make_service):
    service = make_service()
    inbox = service.daemon.scheduler._queue
    inbox.size = 1
    with inbox._changed:
        # Nobody takes while the lock is held; the first fills the inbox.
        inbox._add([Job()])
        with pytest.raises(errors.ServiceBusy):
            service.daemon.scheduler.release([])
