"""What a caller may do, by the policy, and whose instances it may act on."""

import uuid

import pytest

from scheduler_service import errors
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.model import documents
from scheduler_service.request_context import RequestContext
from scheduler_service.testing import table
from tests.support.documents import ADMIN, OWNER, SERVICE, STRANGER
from tests.support.plugins import inventory
from tests.support.services import new_conf

RULE = 'zone_create_forced_pool'
GROUP = str(uuid.uuid4())


def test_caller_is_allowed_when_the_role_fits():
    RequestContext.of(new_conf(), ADMIN).authorize(RULE, {})


@pytest.mark.parametrize('credentials', [OWNER, {}, {'user_id': 'u'}])
def test_caller_is_refused_when_the_role_is_missing(credentials):
    caller = RequestContext.of(new_conf(), credentials)
    with pytest.raises(errors.Forbidden) as caught:
        caller.authorize(RULE, {})
    assert caught.value.facts['rule'] == RULE


@pytest.mark.parametrize(
    ('credentials', 'expected'),
    [(ADMIN, True), (SERVICE, True), (OWNER, False), (STRANGER, False)],
)
def test_caller_acts_on_all_when_no_project_is_needed(credentials, expected):
    caller = RequestContext.of(new_conf(), credentials)
    # The verdict is worked out once, and kept.
    assert [caller.acts_on_all('release') for _ in range(2)] == [expected] * 2


@pytest.mark.parametrize('credentials', [ADMIN, SERVICE])
def test_caller_acts_on_any_project_when_it_acts_on_all(credentials):
    caller = RequestContext.of(new_conf(), credentials)
    for project in ('p', 'q', None):
        caller.authorize_project('release', project, 'it')


def test_caller_acts_on_its_own_project_alone_when_not_on_all():
    caller = RequestContext.of(new_conf(), OWNER)
    caller.authorize_project('release', 'p', 'it')
    for project in ('q', None):
        with pytest.raises(errors.Forbidden) as caught:
            caller.authorize_project('release', project, 'it')
        assert caught.value.facts == {'rule': 'release', 'on': 'it'}


def test_caller_belongs_to_the_project_of_its_credentials():
    assert RequestContext.of(new_conf(), OWNER).project_id == 'p'
    assert RequestContext.of(new_conf(), {}).project_id is None


def check(project_id, caller):
    """Check a request of a caller for a group of a project."""
    document = inventory(a={})
    group = {'uuid': GROUP, 'policy': 'affinity', 'project_id': project_id}
    hosts = table({**document, 'server_groups': [group]})
    request = documents.request({'flavor': {}, 'instance_group': GROUP})
    caller.check_select(request, {}, hosts)


def member_of(project_id):
    return RequestContext.of(
        new_conf(), {'project_id': project_id, 'roles': ['member']}
    )


def test_a_group_of_another_project_is_not_joined():
    with pytest.raises(errors.Forbidden, match=GROUP):
        check('theirs', member_of('ours'))


@pytest.mark.parametrize('project_id', ['ours', None])
def test_a_group_of_the_same_project_or_of_none_is(project_id):
    check(project_id, member_of('ours'))


@pytest.mark.parametrize(
    ('project_id', 'allowed'), [('ours', True), ('theirs', False)]
)
def test_an_instance_that_is_placed_is_its_projects(project_id, allowed):
    request = documents.request({'flavor': {}})
    caller = member_of('ours')
    placed = PlacedInstance('u', 'a', 'a', project_id=project_id)

    def check_it():
        caller.check_select(request, {'u': placed}, table({}))

    if allowed:
        check_it()
    else:
        with pytest.raises(errors.Forbidden, match='instance u'):
            check_it()


def test_claims_are_changed_by_their_project_alone():
    check = member_of('ours').owner_check('release')
    assert check is not None
    check({'u': 'ours'})
    with pytest.raises(errors.Forbidden, match='instance v'):
        check({'u': 'ours', 'v': 'theirs'})


@pytest.mark.parametrize('roles', [['admin'], ['service']])
def test_there_is_nothing_to_check_for_who_acts_for_all(roles):
    caller = RequestContext.of(new_conf(), {'roles': roles})
    assert caller.owner_check('release') is None
    check('theirs', caller)
