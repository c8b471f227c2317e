"""Whose instances and server groups a caller may act on."""

from __future__ import annotations

import types
import uuid

import pytest

from scheduler_service import errors
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.engine import ownership
from scheduler_service.engine.request_context import RequestContext
from scheduler_service.model import documents
from scheduler_service.testing import table
from tests.support.plugins import inventory
from tests.support.services import new_conf

GROUP = str(uuid.uuid4())


def check(project_id, caller):
    """Check a request of a caller for a group of a project."""
    document = inventory(a={})
    group = {'uuid': GROUP, 'policy': 'affinity', 'project_id': project_id}
    hosts = table({**document, 'server_groups': [group]})
    request = documents.request({'flavor': {}, 'instance_group': GROUP})
    job = types.SimpleNamespace(caller=caller, request=request)
    ownership.check_select(job, {}, hosts)


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


def test_an_interface_without_callers_checks_nothing():
    check('theirs', None)


@pytest.mark.parametrize(
    ('project_id', 'allowed'), [('ours', True), ('theirs', False)]
)
def test_an_instance_that_is_placed_is_its_projects(project_id, allowed):
    request = documents.request({'flavor': {}})
    job = types.SimpleNamespace(caller=member_of('ours'), request=request)
    placed = PlacedInstance('u', 'a', 'a', project_id=project_id)

    def check_it():
        ownership.check_select(job, {'u': placed}, {}.get)

    if allowed:
        check_it()
    else:
        with pytest.raises(errors.Forbidden, match='instance u'):
            check_it()


def test_claims_are_changed_by_their_project_alone():
    check = ownership.check_of(member_of('ours'), 'release')
    assert check is not None
    check({'u': 'ours'})
    with pytest.raises(errors.Forbidden, match='instance v'):
        check({'u': 'ours', 'v': 'theirs'})


@pytest.mark.parametrize('roles', [['admin'], ['service']])
def test_there_is_nothing_to_check_for_who_acts_for_all(roles):
    caller = RequestContext.of(new_conf(), {'roles': roles})
    assert ownership.check_of(caller, 'release') is None
    assert ownership.check_of(None, 'release') is None
    check('theirs', caller)


def test_a_right_is_for_the_callers_project():
    check, project_id = ownership.right_of(member_of('ours'), 'release')
    assert check is not None
    assert project_id == 'ours'


@pytest.mark.parametrize('roles', [['admin'], ['service']])
def test_a_right_is_for_all_projects_where_the_caller_acts_for_all(roles):
    credentials = {'project_id': 'ours', 'roles': roles}
    caller = RequestContext.of(new_conf(), credentials)
    assert ownership.right_of(caller, 'release') == (None, None)
    assert ownership.right_of(None, 'release') == (None, None)


def test_a_right_is_for_nobody_where_the_caller_has_no_project():
    _, project_id = ownership.right_of(member_of(None), 'release')
    assert project_id == ''
