"""A claim belongs to its kind: no pod has that of an instance."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.engine.jobs import PodJob
from scheduler_service.model import Instance, Request, documents
from scheduler_service.scheduler import Scheduler
from scheduler_service.store.writing import instances as instance_rows
from tests.support.documents import SMALL
from tests.support.engines import start_engine
from tests.support.stores import (
    HOSTS,
    audit_findings,
    claim_state,
    import_two_hosts,
    used_memory,
)
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.db


@pytest.fixture(params=['sqlite', 'postgresql', 'mariadb'])
def store(request: Any, make_store: Any) -> Any:
    made = make_store(request.param)
    import_two_hosts(made)
    return made


@pytest.fixture
def engine(store: Any) -> Any:
    running = start_engine(store)
    yield running
    running.stop()


def bind(engine: Scheduler, uid: str, host: str = HOSTS[0]) -> Any:
    """Have a pod claimed on a host."""
    pod = PodJob(
        request=Request(
            request_id='n/p',
            project_id='n',
            instance_uuids=[uid],
            amounts={'MEMORY_MB': 2048},
        ),
        host=host,
        node=host,
        name='p',
    )
    return engine.put(pod).result(LIMIT_S)


def select(engine: Scheduler, uid: str, **how: Any) -> Any:
    request = documents.request({'flavor': SMALL, 'instance_uuids': [uid]})
    return engine.select_destinations(request, **how).result(LIMIT_S)


def refused(kind: str, uid: str) -> Any:
    """Expect that a uuid is refused since a consumer of a kind has it."""
    text = f'{uid} is the uuid of an existing {kind}, and cannot'
    return pytest.raises(errors.Conflict, match=text)


@pytest.mark.parametrize('host', HOSTS[:2])
def test_a_pod_is_not_bound_with_the_claim_of_an_instance(engine, store, host):
    """Wherever either of them is."""
    uid = str(uuid.uuid4())
    select(engine, uid)
    before = used_memory(store)
    with refused('instance', uid):
        bind(engine, uid, host)
    assert used_memory(store) == before
    assert audit_findings(store) == []


def test_a_pod_is_not_bound_as_an_instance_that_a_host_reported(engine, store):
    uid = str(uuid.uuid4())
    there = [Instance(uuid=uid, host=HOSTS[0])]
    store.write(lambda writer: instance_rows.report(writer, there))
    with refused('instance', uid):
        bind(engine, uid)
    assert claim_state(store, uid) is None


@pytest.mark.parametrize('move', [False, True])
def test_an_instance_is_not_placed_with_the_uuid_of_a_pod(engine, store, move):
    uid = str(uuid.uuid4())
    bind(engine, uid)
    with refused('pod', uid):
        select(engine, uid, move=move)
    assert used_memory(store) == [2048, 0]
    assert audit_findings(store) == []


def test_a_pod_finds_its_own_claim_again(engine, store):
    uid = str(uuid.uuid4())
    for _ in range(2):
        bind(engine, uid)
    with pytest.raises(errors.Conflict, match='claimed on compute-1 already'):
        bind(engine, uid, HOSTS[1])
    assert used_memory(store) == [2048, 0]
