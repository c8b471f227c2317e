"""The page on audits names all that an audit finds."""

import re

from scheduler_service.store.records import audit
from tests.support.paths import ROOT

PAGE = (ROOT / 'doc/source/admin/audit.rst').read_text()


def test_every_kind_of_finding_of_an_audit_is_described():
    described = PAGE.split('if there are any:\n', 1)[1].split('``--fix``')[0]
    documented = f'{audit.Finding.__doc__}{audit.Audit.__doc__}'
    kinds = re.findall(r'``(\w+)``', documented)
    assert sorted(re.findall(r'(?m)^``(\w+)``$', described)) == sorted(kinds)
