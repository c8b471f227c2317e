"""Releases claims whose answer could not reach the caller.

Any thread may call the functions; the engine's thread does the work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from scheduler_service import errors
from scheduler_service.engine.jobs import BatchItem, DeliveredMessage
from scheduler_service.model import HostsAnswer
from scheduler_service.scheduler import Scheduler

LOG = logging.getLogger(__name__)


def undo_of(
    scheduler: Scheduler, message: DeliveredMessage
) -> Callable[[HostsAnswer], None] | None:
    """Return a function that releases the claims of a message's result.

    :return: None for a message without an id
    """
    return partial(_undo, scheduler, message) if message.id else None


def undo_each_of(
    scheduler: Scheduler, message: DeliveredMessage
) -> Callable[[Sequence[BatchItem]], None] | None:
    """Return the same for a message of many entries."""
    return partial(_undo_each, scheduler, message) if message.id else None


def _undo_each(
    scheduler: Scheduler, message: DeliveredMessage, items: Sequence[BatchItem]
) -> None:
    for number, item in enumerate(items):
        if item.exception() is None and isinstance(item.result(), HostsAnswer):
            _undo(scheduler, message, item.result(), number)


def _undo(
    scheduler: Scheduler,
    message: DeliveredMessage,
    answer: HostsAnswer,
    entry: int = 0,
) -> None:
    uuids = [placement.instance_uuid for placement in answer.placements]
    LOG.warning(
        'The answer on %d instances did not reach its caller, their claims '
        'are released: %s',
        len(uuids),
        ', '.join(uuids[:5]),
    )
    try:
        done = scheduler.undo(uuids, message, entry)
    except errors.ServiceBusy as error:
        LOG.warning('Claims of a lost answer stay: %s', error)
        scheduler.health.count('answers_undone', 'failed')
        return
    done.add_done_callback(partial(_count, scheduler))


def _count(scheduler: Scheduler, done: Future[Any]) -> None:
    """Count the released claims."""
    fault = done.exception()
    if fault is not None:
        LOG.warning('Claims of a lost answer stay: %s', fault)
        scheduler.health.count('answers_undone', 'failed')
    else:
        kept = 'released' if done.result() else 'kept'
        scheduler.health.count('answers_undone', kept)
