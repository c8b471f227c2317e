"""Releases as the store remembers them: by instance and project."""

from __future__ import annotations

import uuid

import pytest

from scheduler_service import errors
from scheduler_service.store import claims
from scheduler_service.store.claims import outcomes
from scheduler_service.store.claims.outcomes import ALL, MOVE, ReleaseRequest
from scheduler_service.store.connection import Store
from scheduler_service.store.sessions import Timeouts
from tests.support.stores import import_two_hosts, new_claim, write_claims

pytestmark = pytest.mark.db


@pytest.fixture
def instance() -> str:
    return str(uuid.uuid4())


def record(store, instance, kind=ALL, **asked):
    sent = {instance: ReleaseRequest(**asked)}
    store.write(lambda w: outcomes.record_releases(w, sent, kind))


def found(store, instance, project_id):
    """Return kind and time of sending of what concerns a project."""
    with store.reading() as conn:
        some = outcomes.releases(conn, [instance], project_id)
    return sorted((one.kind, one.sent_at) for one in some)


@pytest.mark.parametrize('kind', [ALL, MOVE])
def test_a_release_concerns_the_project_that_released(store, instance, kind):
    record(store, instance, kind, sent_at=1.0, project_id='owner')
    assert found(store, instance, 'owner') == [(kind, 1.0)]
    # Not that either: some databases ignore case where nobody tells them.
    for other in ('stranger', 'OWNER', '', None):
        assert found(store, instance, other) == []


def test_a_release_for_all_concerns_every_project(store, instance):
    record(store, instance, sent_at=1.0)
    for project in ('owner', '', None):
        assert found(store, instance, project) == [(ALL, 1.0)]


@pytest.mark.parametrize('order', [1, -1])
def test_no_release_replaces_that_of_another_project(store, instance, order):
    sent = [('owner', 1.0), ('stranger', 2.0), (None, 3.0)][::order]
    for project_id, sent_at in sent:
        record(store, instance, sent_at=sent_at, project_id=project_id)
    assert found(store, instance, 'owner') == [(ALL, 1.0), (ALL, 3.0)]
    assert found(store, instance, 'stranger') == [(ALL, 2.0), (ALL, 3.0)]
    record(store, instance, sent_at=4.0, project_id='owner')
    assert found(store, instance, 'owner') == [(ALL, 3.0), (ALL, 4.0)]


def test_a_redelivered_request_claims_when_a_stranger_released(
    store, instance
):
    snapshot = import_two_hosts(store)
    wanted = new_claim(
        snapshot, 1, consumer=instance, project_id='owner', redelivered=True
    )
    record(store, instance, project_id='stranger')
    write_claims(store, wanted)


@pytest.mark.parametrize('project_id', ['owner', None])
def test_a_redelivered_request_claims_nothing_when_its_owner_released(
    store, instance, project_id
):
    snapshot = import_two_hosts(store)
    wanted = new_claim(
        snapshot, 1, consumer=instance, project_id='owner', redelivered=True
    )
    record(store, instance, project_id=project_id)
    record(store, instance, project_id='stranger')
    with pytest.raises(claims.ClaimLost):
        write_claims(store, wanted)


@pytest.mark.parametrize('database', ['postgresql', 'mariadb'])
def test_a_claim_holds_up_the_releases_that_concern_it_alone(
    make_url, instance, database
):
    url = make_url(database)
    store = Store.connect(url, timeouts=Timeouts(lock=1.0), max_pool_size=5)
    with store.engine.begin() as claiming:
        assert outcomes.lock_releases(claiming, [(instance, 'owner')]) == 0
        for project_id in ('owner', None):
            for kind in (ALL, MOVE):
                with pytest.raises(errors.StoreTimeout):
                    record(store, instance, kind, project_id=project_id)
        record(store, instance, project_id='stranger')
    for project_id in ('owner', None):
        record(store, instance, project_id=project_id)
    assert len(found(store, instance, 'owner')) == 2
    store.dispose()
