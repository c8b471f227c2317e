"""Policy rules: which roles may do what.

The enforcer is used by the engine's thread.
"""

from __future__ import annotations

from typing import Any

from oslo_policy import policy

RULES = [
    policy.RuleDefault(
        name='admin_required',
        check_str='role:admin or is_admin:True',
        description='Callers that may do everything.',
    ),
    policy.RuleDefault(
        name='zone_create_forced_pool',
        check_str='rule:admin_required',
        description='Select the pool of a zone by the attribute pool_id.',
    ),
]


def list_rules() -> list[Any]:
    """Return the rules with their defaults, for the sample's generator."""
    return list(RULES)


def new_enforcer(conf: Any) -> Any:
    """Return an enforcer of these rules and of the operator's policy file."""
    enforcer = policy.Enforcer(conf)
    enforcer.register_defaults(RULES)
    return enforcer
