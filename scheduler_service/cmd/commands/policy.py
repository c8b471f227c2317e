"""``scheduler-manage policy``: what the policy file allows to whom."""

from __future__ import annotations

from typing import Any

from scheduler_service import policies
from scheduler_service.cmd import output

# Kinds of callers, and the project that owns what they act on.
_OWNER = 'owner'
_CALLERS: dict[str, dict[str, Any]] = {
    'nobody': {'roles': []},
    'other project': {'project_id': 'other', 'roles': ['member']},
    _OWNER: {'project_id': _OWNER, 'roles': ['member']},
    'service': {'project_id': 'service', 'roles': ['service']},
    'admin': {'project_id': 'admin', 'roles': ['admin']},
}


def check(args: Any, conf: Any) -> int:
    """Check the policy file, and print whom each rule allows what.

    :return: 1 where the file names rules that do not exist
    :raises ConfigurationError: the file cannot be read, or has rules that
        cannot be used
    """
    enforcer = policies.Enforcer(conf)
    callers, owner = _CALLERS, _OWNER
    if args.role or args.user or args.project or args.owner:
        given = {
            'user_id': args.user,
            'project_id': args.project,
            'roles': args.role,
        }
        callers, owner = {'allowed': given}, args.owner
    target = {'project_id': owner} if owner else {}
    rows = [
        {
            'rule': rule,
            **{
                name: enforcer.allows(rule, target, caller)
                for name, caller in callers.items()
            },
        }
        for rule in policies.method_rules()
    ]
    output.listing(rows, ['rule', *callers], args)
    return 1 if enforcer.unknown_rules() else 0
