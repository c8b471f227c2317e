"""Who makes a request, and what the policy allows them.

A context belongs to its request. The policy enforcer behind it is shared, and
reads its files itself when they change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_service import errors, policies


class RequestContext:
    """A caller, as filters see it: it can be authorized for a policy rule.

    :param enforcer: an ``oslo_policy.policy.Enforcer``
    :param credentials: user_id, project_id, roles and so on, as the message
        brought them; empty for none
    """

    def __init__(self, enforcer: Any, credentials: Mapping[str, Any]) -> None:
        self._enforcer = enforcer
        self.credentials = dict(credentials)
        self.credentials.setdefault('roles', [])

    @classmethod
    def of(cls, conf: Any, credentials: Mapping[str, Any]) -> RequestContext:
        """Return a caller under the policy that *conf* names."""
        return cls(policies.new_enforcer(conf), credentials)

    def authorize(self, rule: str, target: dict[str, Any]) -> None:
        """Check a policy rule.

        :param rule: its name
        :param target: what is to be acted on
        :raises Forbidden: the rule does not allow it
        """
        if not self._enforcer.enforce(rule, target, self.credentials):
            raise errors.Forbidden(
                f'Policy does not allow {rule} to be performed', rule=rule
            )
