"""Releases wait for the claims that they concern, and for no others."""

from __future__ import annotations

import uuid

import pytest

from scheduler_service import errors
from scheduler_service.store.claims import outcomes
from scheduler_service.store.claims.outcomes import ALL, MOVE, ReleaseRequest
from scheduler_service.store.connection import Store
from scheduler_service.store.sessions import Timeouts

pytestmark = pytest.mark.db


@pytest.mark.parametrize('database', ['postgresql', 'mariadb'])
def test_a_claim_holds_up_the_releases_that_concern_it_alone(
    make_url, database
):
    url, instance = make_url(database), str(uuid.uuid4())
    store = Store.connect(url, timeouts=Timeouts(lock=1.0), max_pool_size=5)

    def record(kind, project_id):
        sent = {instance: ReleaseRequest(project_id=project_id)}
        store.write(lambda w: outcomes.record_releases(w, sent, kind))

    with store.engine.begin() as claiming:
        assert outcomes.lock_releases(claiming, [(instance, 'owner')]) == 0
        for project_id in ('owner', None):
            for kind in (ALL, MOVE):
                with pytest.raises(errors.StoreTimeout):
                    record(kind, project_id)
        record(ALL, 'stranger')
    for project_id in ('owner', None):
        record(ALL, project_id)
    with store.reading() as conn:
        assert len(outcomes.releases(conn, [instance], 'owner')) == 2
    store.dispose()
