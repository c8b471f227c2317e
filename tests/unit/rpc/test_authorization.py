"""Credentials of callers are read from the request context."""

import pytest
from oslo_context import context

from scheduler_service import errors
from scheduler_service.rpc.authorization import credentials


def test_credentials_have_identity_and_roles_when_read():
    read = credentials(
        {'user_id': 'u', 'project_id': 'p', 'roles': ('a', 'b'), 'x': 1}
    )
    assert (read['user_id'], read['project_id']) == ('u', 'p')
    assert read['roles'] == ['a', 'b']
    assert read['is_admin'] is False
    assert 'x' not in read


def test_a_service_on_its_own_behalf_needs_no_user():
    made = context.RequestContext(is_admin=True)
    assert credentials(made.to_dict())['is_admin'] is True


def test_older_names_are_read_when_the_newer_are_absent():
    assert credentials({'user': 'u'})['user_id'] == 'u'


@pytest.mark.parametrize('given', [1, 'true', None])
def test_caller_is_no_admin_when_the_flag_is_not_a_bool(given):
    assert credentials({'user_id': 'u', 'is_admin': given})['is_admin'] is (
        False
    )


@pytest.mark.parametrize(
    ('given', 'place'),
    [
        (None, 'context: required'),
        ({}, 'context: required'),
        ('text', 'context: required'),
        ({'user_id': 5}, 'context.user_id'),
        ({'user_id': 'a\0'}, 'context.user_id'),
        ({'user_id': 'u', 'project_id': 'p' * 256}, 'context.project_id'),
        ({'user_id': 'u', 'roles': 'admin'}, 'context.roles'),
        ({'user_id': 'u', 'roles': [1]}, 'context.roles'),
        ({'roles': ['admin']}, 'context.user_id: required'),
        ({'user_id': '', 'is_admin': 'yes'}, 'context.user_id: required'),
    ],
)
def test_context_is_refused_with_its_place_when_wrong(given, place):
    with pytest.raises(errors.InvalidRequest, match=place):
        credentials(given)
