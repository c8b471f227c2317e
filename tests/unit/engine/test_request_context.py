"""What a caller may do, by the policy."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.engine.request_context import RequestContext
from tests.support.documents import ADMIN, OWNER, SERVICE, STRANGER
from tests.support.services import new_conf

RULE = 'zone_create_forced_pool'


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
