"""Whose requests a release cancels."""

import uuid

import pytest

from scheduler_service.request_context import RequestContext
from tests.support.databases import DATABASES, connect
from tests.support.engines import Message, select, start_engine
from tests.support.services import new_conf
from tests.support.stores import import_inventory, wipe

pytestmark = pytest.mark.db
# Some databases ignore case where nobody tells them.
OWNER, STRANGER = 'owner', 'OWNER'
CANCELLED = {'error': 'RequestCancelled'}


@pytest.fixture(scope='module', params=DATABASES)
def engine(request, shared_url):
    """An engine on each database, with hosts."""
    store = connect(shared_url(request.param))
    wipe(store)
    import_inventory(store)
    running = start_engine(store)
    yield running
    running.stop()
    store.dispose()


@pytest.fixture
def instance() -> str:
    return str(uuid.uuid4())


def caller(project_id, role='member') -> RequestContext:
    return RequestContext.of(
        new_conf(), {'project_id': project_id, 'roles': [role]}
    )


def asked(instance, move=False) -> Message:
    """Return a request of the owner that no daemon finished.

    The daemon that had it first was killed before it did anything.
    """
    message = select([instance], move=move, project_id=OWNER)
    message.deliveries = 1
    return message


def release(engine, instance, who, verb='release', ahead=0.0) -> list[str]:
    """Release an instance; the caller's clock is ahead by some seconds."""
    message = Message(verb, ([instance],), {'caller': who})
    message.sent_at += ahead
    return message.run(engine)


@pytest.mark.parametrize('stamped', [True, False])
def test_a_stranger_cancels_no_request(engine, instance, stamped):
    wanted = asked(instance)
    wanted.stamped = stamped
    assert release(engine, instance, caller(STRANGER)) == []
    assert 'placements' in wanted.run(engine)


def test_a_stranger_cancels_no_request_that_comes_later(engine, instance):
    release(engine, instance, caller(STRANGER), ahead=3600.0)
    first = select([instance], project_id=OWNER)
    assert 'placements' in first.run(engine)


def test_a_stranger_drops_no_move_that_is_under_way(engine, instance):
    wanted = asked(instance, move=True)
    assert release(engine, instance, caller(STRANGER), 'drop_moves') == []
    assert 'placements' in wanted.run(engine)


@pytest.mark.parametrize(
    'who',
    [(OWNER,), (STRANGER, 'service'), (None, 'admin'), None],
    ids=['owner', 'service', 'admin', 'command'],
)
@pytest.mark.parametrize('stranger', ['before', 'after'])
def test_the_owner_and_who_acts_for_all_cancel_requests(
    engine, instance, who, stranger
):
    """A stranger does not make the daemon forget it."""
    wanted = asked(instance)
    if stranger == 'before':
        release(engine, instance, caller(STRANGER))
    release(engine, instance, caller(*who) if who else None)
    if stranger == 'after':
        release(engine, instance, caller(STRANGER))
    assert wanted.run(engine) == CANCELLED


def test_the_owner_drops_a_move_that_is_under_way(engine, instance):
    select([instance], project_id=OWNER).run(engine)
    wanted = asked(instance, move=True)
    assert release(engine, instance, caller(OWNER), 'drop_moves') == []
    assert wanted.run(engine) == CANCELLED
