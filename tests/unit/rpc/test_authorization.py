"""What a caller asks for is checked before anything is queued."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.model import documents
from scheduler_service.policies import Enforcer
from scheduler_service.rpc import authorization
from tests.support.documents import ADMIN, NOBODY, OWNER, SERVICE, STRANGER
from tests.support.services import new_conf


@pytest.fixture(scope='module')
def enforcer():
    return Enforcer(new_conf())


@pytest.mark.parametrize(
    ('context', 'rule'),
    [(NOBODY, 'release'), (OWNER, 'ping'), (SERVICE, 'delete_aggregate')],
)
def test_a_method_is_forbidden_at_once(enforcer, context, rule):
    with pytest.raises(errors.Forbidden) as caught:
        authorization.caller(enforcer, context, rule)
    assert caught.value.facts == {'rule': rule}
    has_no_project = 'names no project' in str(caught.value)
    assert has_no_project is (context is NOBODY)


@pytest.mark.parametrize(
    ('check', 'parse', 'document'),
    [
        (authorization.select, documents.request, {}),
        (authorization.zone, documents.zone, {'name': 'a.'}),
    ],
)
def test_a_document_belongs_to_a_project(enforcer, check, parse, document):
    owner = authorization.caller(enforcer, OWNER, 'schedule_many')
    mine = parse(document)
    check(owner, mine)
    assert mine.project_id == 'p'
    theirs = parse({**document, 'project_id': 'p'})
    stranger = authorization.caller(enforcer, STRANGER, 'schedule_many')
    with pytest.raises(errors.Forbidden):
        check(stranger, theirs)
    with pytest.raises(errors.Forbidden):
        check(owner, mine, False)
    for context in (SERVICE, ADMIN):
        check(authorization.caller(enforcer, context, 'release'), theirs)
    assert theirs.project_id == 'p'


@pytest.mark.parametrize(
    'wanted',
    [
        {'force_hosts': ['a']},
        {'force_nodes': ['a']},
        {'requested_destination': {'host': 'a'}},
        {'requested_destination': {'node': 'a'}},
        {'requested_destination': {'host': 'a', 'node': 'a'}},
    ],
)
def test_a_host_is_named_by_those_who_may(enforcer, wanted):
    rule = 'select_destinations'
    with pytest.raises(errors.Forbidden) as caught:
        authorization.select(
            authorization.caller(enforcer, OWNER, rule),
            documents.request(wanted),
        )
    assert caught.value.facts == {'rule': f'{rule}:forced_host'}
    may = authorization.caller(enforcer, ADMIN, rule)
    authorization.select(may, documents.request(wanted))
