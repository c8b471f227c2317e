"""Whose server groups a request may join."""

from __future__ import annotations

import types
import uuid

import pytest

from scheduler_service import errors
from scheduler_service.engine import ownership
from scheduler_service.engine.request_context import RequestContext
from scheduler_service.model import documents
from tests.support.services import new_conf

GROUP = str(uuid.uuid4())


def check(project_id, caller):
    """Check a request of a caller for a group of a project."""
    request = documents.request({'flavor': {}, 'instance_group': GROUP})
    job = types.SimpleNamespace(caller=caller, request=request)
    ownership.check_select(job, {}, {GROUP: project_id}.get)


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
