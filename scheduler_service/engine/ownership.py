"""Whether a caller may act on instances and groups that exist already.

What belongs to which project is in the rows that the engine reads anyway, so
this is checked there. Stateless; runs on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler_service.columns import HostTable
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.engine.jobs import HostJob
from scheduler_service.engine.request_context import RequestContext
from scheduler_service.store.claims.lifecycle import OwnerCheck


def check_of(caller: RequestContext | None, rule: str) -> OwnerCheck | None:
    """Return what is to be called with the project of each instance.

    :param caller: None: there is nothing to check
    :return: raises ``Forbidden``; None where the caller may act on all
    """
    if caller is None or caller.acts_on_all(rule):
        return None

    def check(project_of: Mapping[str, str | None]) -> None:
        for uuid, project_id in project_of.items():
            caller.authorize_project(rule, project_id, f'instance {uuid}')

    return check


def right_of(
    caller: RequestContext | None, rule: str
) -> tuple[OwnerCheck | None, str | None]:
    """Return what :func:`check_of` does, and for which project that is.

    :return: with None for the project where the caller may act on all; one
        that has no project acts for the empty one, which is nobody's
    """
    check = check_of(caller, rule)
    if check is None or caller is None:
        return None, None
    return check, caller.project_id or ''


def check_select(
    job: HostJob, present: Mapping[str, PlacedInstance], table: HostTable
) -> None:
    """Check a job that names instances or a group that exist already.

    A group without a project is open to all projects.

    :param present: its instances that the snapshot has
    :raises Forbidden: one belongs to another project
    """
    caller, request = job.caller, job.request
    if caller is None:
        return
    rule = 'select_destinations'
    for placed in present.values():
        caller.authorize_project(
            rule, placed.project_id, f'instance {placed.uuid}'
        )
    if request.instance_group:
        group = table.groups.get(request.instance_group)
        if group is not None and group.project_id:
            caller.authorize_project(
                rule, group.project_id, f'server group {group.uuid}'
            )
