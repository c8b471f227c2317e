"""Who makes a request, and what the policy allows them.

A context belongs to its request. The policy enforcer behind it is shared, and
reads its files itself when they change. What belongs to which project is in
the rows that the engine reads anyway, so that is checked there, on its thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.engine.jobs import OwnerCheck
from scheduler_service.model import Request
from scheduler_service.policies import Enforcer


class RequestContext:
    """A caller, as filters see it: it can be authorized for a policy rule.

    :param credentials: user_id, project_id, roles and so on, as the message
        brought them; empty for none
    :ivar project_id: the caller's project
    """

    def __init__(
        self, enforcer: Enforcer, credentials: Mapping[str, Any]
    ) -> None:
        self._enforcer = enforcer
        self.credentials = dict(credentials)
        self.credentials.setdefault('roles', [])
        self.project_id: str | None = credentials.get('project_id')
        # Rule -> verdict: one message may name many instances and projects.
        self._on_all: dict[str, bool] = {}

    @classmethod
    def of(cls, conf: Any, credentials: Mapping[str, Any]) -> RequestContext:
        """Return a caller under the policy that *conf* names.

        :raises ConfigurationError: a policy file cannot be used
        """
        return cls(Enforcer(conf), credentials)

    def acts_on_all(self, rule: str) -> bool:
        """Return whether a rule allows to act on what is no project's.

        Such a caller may act on what belongs to any project.
        """
        allowed = self._on_all.get(rule)
        if allowed is None:
            allowed = self._enforcer.allows(rule, {}, self.credentials)
            self._on_all[rule] = allowed
        return allowed

    def authorize(self, rule: str, target: Mapping[str, Any]) -> None:
        """Check a policy rule.

        :param rule: its name
        :param target: what is to be acted on
        :raises Forbidden: the rule does not allow it
        """
        if not self._enforcer.allows(rule, target, self.credentials):
            raise errors.Forbidden(
                f'Policy does not allow {rule} to be performed', rule=rule
            )

    def authorize_project(
        self, rule: str, project_id: str | None, what: str
    ) -> None:
        """Check a policy rule for something that belongs to a project.

        :param project_id: None: it belongs to no project
        :param what: names it in the error
        :raises Forbidden: the rule does not allow it
        """
        if self.acts_on_all(rule):
            return
        target = {'project_id': project_id}
        if not self._enforcer.allows(rule, target, self.credentials):
            raise errors.Forbidden(
                f'Policy does not allow {rule} to be performed on {what}',
                rule=rule,
                on=what,
            )

    def check_select(
        self,
        request: Request,
        present: Mapping[str, PlacedInstance],
        table: HostTable,
    ) -> None:
        """Check a request that names instances or a group that exist already.

        A group without a project is open to all projects. Of hints, those of
        the filters on instances count.

        :param present: its instances that the snapshot has
        :raises Forbidden: one belongs to another project
        """
        rule = 'select_destinations'
        hinted = table.instances.among(request.hinted_instances)
        for placed in (*present.values(), *hinted.values()):
            self.authorize_project(
                rule, placed.project_id, f'instance {placed.uuid}'
            )
        if request.instance_group:
            group = table.groups.get(request.instance_group)
            if group is not None and group.project_id:
                self.authorize_project(
                    rule, group.project_id, f'server group {group.uuid}'
                )

    def owner_check(self, rule: str) -> OwnerCheck | None:
        """Return what is to be called with the project of each instance.

        :return: raises ``Forbidden``; None where the caller may act on all
        """
        if self.acts_on_all(rule):
            return None

        def check(project_of: Mapping[str, str | None]) -> None:
            for uuid, project_id in project_of.items():
                self.authorize_project(rule, project_id, f'instance {uuid}')

        return check
