"""Jobs that change claims: release, confirm, drop a move, and others.

Stateless: the caller's thread makes a job, the engine's thread runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scheduler_service.engine.jobs import ClaimsJob, DeliveredMessage
from scheduler_service.model import ServerGroup
from scheduler_service.store.claims import lifecycle, unused
from scheduler_service.store.claims.lifecycle import OwnerCheck
from scheduler_service.store.connection import Writer
from scheduler_service.store.writing import server_groups


def release(
    instances: Sequence[str],
    deadline: float | None,
    message: DeliveredMessage,
    check: OwnerCheck | None = None,
) -> ClaimsJob:
    """Return a job that releases claims.

    Its result is the instances that held something.

    :param check: whether the caller may change them
    """

    def work(writer: Writer) -> list[str]:
        return lifecycle.cancel(writer, instances, message.sent_at, check)

    return ClaimsJob(
        work=work, instances=instances, deadline=deadline, message=message
    )


def confirm(
    instances: Sequence[str],
    deadline: float | None,
    message: DeliveredMessage,
    check: OwnerCheck | None = None,
) -> ClaimsJob:
    """Return a job that confirms claims.

    Its result is the instances that were not confirmed before.
    """

    def work(writer: Writer) -> list[str]:
        where = lifecycle.claimed_hosts(writer.conn, instances)
        return lifecycle.confirm(writer, where, check)

    return ClaimsJob(
        work=work, instances=instances, deadline=deadline, message=message
    )


def drop_moves(
    instances: Sequence[str],
    deadline: float | None,
    message: DeliveredMessage,
    check: OwnerCheck | None = None,
) -> ClaimsJob:
    """Return a job that releases the second claims of instances.

    Its result is the instances that had one.
    """

    def work(writer: Writer) -> list[str]:
        return lifecycle.cancel_moves(
            writer, instances, message.sent_at, check
        )

    return ClaimsJob(
        work=work, instances=instances, deadline=deadline, message=message
    )


def supersede(
    instances: Sequence[str], message: DeliveredMessage
) -> ClaimsJob:
    """Return a job that releases what earlier messages claimed.

    :param message: for whose request that is; what it claimed itself, where
        it is delivered again, stays
    """
    key = message.key()

    def work(writer: Writer) -> list[str]:
        return unused.supersede(writer, instances, key)

    return _again(work, instances, message)


def store_group(
    group: ServerGroup, instances: Sequence[str], message: DeliveredMessage
) -> ClaimsJob:
    """Return a job that adds or completes a server group.

    :param instances: that are about to join it
    """

    def work(writer: Writer) -> bool:
        return server_groups.put(writer, group)

    return _again(work, instances, message)


def undo(
    instances: Sequence[str], message: DeliveredMessage, entry: int = 0
) -> ClaimsJob:
    """Return a job that releases what an entry of a message claimed.

    :param message: whose caller cannot get the answer
    """
    key = str(message.key(entry))

    def work(writer: Writer) -> list[str]:
        return unused.undo(writer, instances, key)

    return _again(work, instances, message)


def _again(
    work: Callable[[Writer], Any],
    instances: Sequence[str],
    message: DeliveredMessage,
) -> ClaimsJob:
    """Return a job that may be done again: its outcome is not recorded."""
    return ClaimsJob(
        work=work,
        instances=instances,
        message=DeliveredMessage(lane=message.lane),
    )
