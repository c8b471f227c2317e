"""The page on security lists the rules, with their defaults."""

import re

from scheduler_service import policies
from tests.support.paths import ROOT
from tests.support.services import new_conf

PAGE = (ROOT / 'doc/source/admin/security.rst').read_text()
CALLERS = {
    'owner': {'project_id': 'p', 'roles': ['member']},
    'service': {'project_id': 's', 'roles': ['service']},
    'admin': {'project_id': 'a', 'roles': ['admin']},
}


def test_every_rule_is_listed_with_those_whom_it_allows():
    listed = dict(re.findall(r'(?m)^``([\w:]+)`` +((?:\w+, )*\w+)$', PAGE))
    enforcer = policies.Enforcer(new_conf())
    allowed = {
        rule: ', '.join(
            name
            for name, caller in CALLERS.items()
            if enforcer.allows(rule, {'project_id': 'p'}, caller)
        )
        for rule in policies.method_rules()
    }
    assert listed == allowed
