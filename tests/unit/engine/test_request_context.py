"""What a caller may do, by the policy."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.engine.request_context import RequestContext
from tests.support.documents import ADMIN, OWNER
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
