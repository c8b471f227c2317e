"""Jobs that change claims: release, confirm, drop a move, and others.

Stateless: the caller's thread makes a job, the engine's thread runs it. Jobs
with the same change are run together, with as many statements as one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scheduler_service import errors
from scheduler_service.engine.delivered_message import DeliveredMessage
from scheduler_service.engine.jobs import ClaimsJob
from scheduler_service.model import ServerGroup
from scheduler_service.store.claims import lifecycle, released_claims
from scheduler_service.store.claims.lifecycle import OwnerCheck
from scheduler_service.store.claims.outcomes import ReleaseRequest
from scheduler_service.store.connection import Writer
from scheduler_service.store.writing import server_groups


def release(
    instances: Sequence[str],
    deadline: float | None,
    message: DeliveredMessage,
    check: OwnerCheck | None = None,
    project_id: str | None = None,
) -> ClaimsJob:
    """Return a job that releases claims.

    Its result is the instances that held something.

    :param check: whether the caller may change them
    :param project_id: whose requests it cancels; None: anybody's
    """
    return _job(_release, instances, deadline, message, check, project_id)


def confirm(
    instances: Sequence[str],
    deadline: float | None,
    message: DeliveredMessage,
    check: OwnerCheck | None = None,
) -> ClaimsJob:
    """Return a job that confirms claims.

    Its result is the instances that were not confirmed before.
    """
    return _job(_confirm, instances, deadline, message, check)


def drop_moves(
    instances: Sequence[str],
    deadline: float | None,
    message: DeliveredMessage,
    check: OwnerCheck | None = None,
    project_id: str | None = None,
) -> ClaimsJob:
    """Return a job that releases the second claims of instances.

    Its result is the instances that had one.

    :param project_id: whose requests it cancels; None: anybody's
    """
    return _job(_drop_moves, instances, deadline, message, check, project_id)


def supersede(
    instances: Sequence[str], message: DeliveredMessage
) -> ClaimsJob:
    """Return a job that releases what earlier messages claimed.

    :param message: for whose request that is; what it claimed itself, where
        it is delivered again, stays
    """
    key = message.key()

    def work(writer: Writer) -> list[str]:
        return released_claims.supersede(writer, instances, key)

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
        return released_claims.undo(writer, instances, key)

    return _again(work, instances, message)


def _job(
    change: Callable[[Writer, Sequence[ClaimsJob]], list[Any]],
    instances: Sequence[str],
    deadline: float | None,
    message: DeliveredMessage,
    check: OwnerCheck | None,
    project_id: str | None = None,
) -> ClaimsJob:
    return ClaimsJob(
        change=change,
        check=check,
        project_id=project_id,
        instances=instances,
        deadline=deadline,
        message=message,
    )


def _again(
    work: Callable[[Writer], Any],
    instances: Sequence[str],
    message: DeliveredMessage,
) -> ClaimsJob:
    """Return a job that may be done again: its outcome is not recorded."""

    def change(writer: Writer, jobs: Sequence[ClaimsJob]) -> list[Any]:
        return [work(writer) for _ in jobs]

    return ClaimsJob(
        change=change,
        instances=instances,
        message=DeliveredMessage(lane=message.lane),
    )


def _release(writer: Writer, jobs: Sequence[ClaimsJob]) -> list[Any]:
    released = lifecycle.cancel(writer, asked(jobs), _check_of(jobs))
    return results(jobs, released)


def releases_at_once(
    jobs: Sequence[ClaimsJob],
) -> tuple[list[ClaimsJob], dict[str, str | None]]:
    """Return jobs that release, and whose the instances have to be.

    :return: the jobs, and the project that each instance has to be of; None:
        any. A caller that may not act on its own project's instances is left
        out: its instances are read first
    """
    found: list[ClaimsJob] = []
    expected: dict[str, str | None] = {}
    for job in jobs:
        if job.change is not _release:
            continue
        if job.check is not None:
            if not job.project_id:
                continue
            try:
                job.check(dict.fromkeys(job.instances, job.project_id))
            except errors.Forbidden:
                continue
        found.append(job)
        expected.update(
            dict.fromkeys(job.instances, job.project_id if job.check else None)
        )
    return found, expected


def _confirm(writer: Writer, jobs: Sequence[ClaimsJob]) -> list[Any]:
    instances = [uuid for job in jobs for uuid in job.instances]
    expected = dict.fromkeys(instances)
    confirmed = lifecycle.confirm(writer, expected, _check_of(jobs))
    return results(jobs, confirmed)


def _drop_moves(writer: Writer, jobs: Sequence[ClaimsJob]) -> list[Any]:
    dropped = lifecycle.cancel_moves(writer, asked(jobs), _check_of(jobs))
    return results(jobs, dropped)


def asked(jobs: Sequence[ClaimsJob]) -> dict[str, ReleaseRequest]:
    """Return who asked for the change of each instance, and when."""
    return {
        uuid: ReleaseRequest(job.message.sent_at, job.project_id)
        for job in jobs
        for uuid in job.instances
    }


def _check_of(jobs: Sequence[ClaimsJob]) -> OwnerCheck | None:
    """Return the checks of all jobs, each of its own instances, as one."""
    checks = [
        (frozenset(job.instances), job.check)
        for job in jobs
        if job.check is not None
    ]
    if not checks:
        return None

    def check(project_of: Mapping[str, str | None]) -> None:
        for instances, one in checks:
            mine = instances & project_of.keys()
            one({uuid: project_of[uuid] for uuid in mine})

    return check


def results(jobs: Sequence[ClaimsJob], changed: Sequence[str]) -> list[Any]:
    """Return for each job those of its instances that were changed."""
    found = frozenset(changed)
    return [sorted(found.intersection(job.instances)) for job in jobs]
