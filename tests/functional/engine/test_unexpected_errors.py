"""Errors that nobody expects, once the claim of a request is made."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler_service.engine.selecting import Answer
from scheduler_service.store.claims import ClaimBatch
from tests.support.databases import DATABASES
from tests.support.engines import select, start_engine
from tests.support.stores import (
    audit_findings,
    claim_state,
    import_inventory,
)

pytestmark = pytest.mark.db
FAILED = {'error': 'SchedulerError'}


@pytest.fixture(params=DATABASES)
def store(request: Any, make_store: Any) -> Any:
    """A store with hosts, on each database."""
    store = make_store(request.param)
    import_inventory(store)
    return store


@pytest.fixture
def engine(store: Any) -> Iterator[Any]:
    running = start_engine(store)
    yield running
    running.stop()
    assert not audit_findings(store)


def fail(
    monkeypatch: Any, owner: Any, name: str, times: int, late: bool = False
) -> None:
    """Have a method fail some times.

    :param late: after it did its work
    """
    real, left = getattr(owner, name), [MemoryError()] * times

    def method(*args: Any, **more: Any) -> Any:
        result = real(*args, **more) if late or not left else None
        if left:
            raise left.pop()
        return result

    monkeypatch.setattr(owner, name, method)


@pytest.mark.parametrize(
    ('owner', 'name', 'late'),
    [
        (ClaimBatch, 'wait', True),
        (Answer, 'run', False),
    ],
)
def test_claim_is_found_after_an_error(
    engine, store, monkeypatch, owner, name, late
):
    fail(monkeypatch, owner, name, times=1, late=late)
    asked = str(uuid.uuid4())
    answer = select([asked]).run(engine)
    assert [one['instance_uuid'] for one in answer['placements']] == [asked]
    assert claim_state(store, asked) == 'claimed'


def test_claim_is_undone_before_a_request_is_refused(
    engine, store, monkeypatch
):
    fail(monkeypatch, Answer, 'run', times=2)
    asked = str(uuid.uuid4())
    assert select([asked]).run(engine) == FAILED
    assert claim_state(store, asked) is None
    assert 'placements' in select([asked]).run(engine)


def test_claim_that_may_have_been_answered_stays(engine, store, monkeypatch):
    """The message came again: the caller may have its first answer."""
    message = select([str(uuid.uuid4())])
    answer = message.run(engine)
    [asked] = message.args[0].instance_uuids
    fail(monkeypatch, Answer, 'run', times=2)
    assert message.run(engine) == answer
    assert claim_state(store, asked) == 'claimed'
