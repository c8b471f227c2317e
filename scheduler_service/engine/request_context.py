"""Who asks, as filters see it: a context with the policy behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_service import errors, policies


class RequestContext:
    """A caller whose rights are what the policy makes of its context.

    :param credentials: user_id, project_id, roles and so on, as the message
        brought them; empty for none
    """

    def __init__(self, enforcer: Any, credentials: Mapping[str, Any]) -> None:
        self._enforcer = enforcer
        self.credentials = dict(credentials)
        self.credentials.setdefault('roles', [])

    @classmethod
    def of(cls, conf: Any, credentials: Mapping[str, Any]) -> RequestContext:
        """Return a caller under the policy of *conf*."""
        return cls(policies.new_enforcer(conf), credentials)

    def authorize(self, rule: str, target: dict[str, Any]) -> None:
        """Check a policy rule on *target*.

        :raises Forbidden: where the rule says no
        """
        if not self._enforcer.enforce(rule, target, self.credentials):
            raise errors.Forbidden(
                f'Policy does not allow {rule} to be performed', rule=rule
            )
