"""Calls without a reply that claimed are counted apart from the others."""

import uuid

import oslo_messaging
import pytest

from scheduler_service import errors
from scheduler_service.store.claims import lifecycle
from tests.support.clouds import Cloud
from tests.support.stores import move_of, write_claims

LATE = oslo_messaging.MessagingTimeout()


@pytest.fixture
def store(make_store):
    """A store: nothing here depends on the kind of database."""
    return make_store()


@pytest.fixture
def cloud(store, tmp_path):
    return Cloud(store, '', '', tmp_path, tmp_path, {}, tmp_path)


def test_a_call_that_claimed_nothing_is_counted_apart(cloud, claim):
    lost, refused = [claim.consumer], [str(uuid.uuid4())]
    timed_out = 'no answer: MessagingTimeout'
    assert cloud.missing_reply(LATE, lost + refused) == timed_out
    assert cloud.missing_reply(LATE, refused) == f'{timed_out}, no claim'
    # A release claims nothing either way, and an error is a reply.
    assert cloud.missing_reply(LATE, ()) == timed_out
    assert cloud.missing_reply(errors.ServiceBusy(), refused) == (
        'no answer: ServiceBusy'
    )


def test_a_move_counts_by_its_second_claim(cloud, store, snapshot, claim):
    seen = {claim.consumer: 'compute-1'}
    store.write(lambda w: lifecycle.confirm(w, seen))
    moving = [claim.consumer]
    name = cloud.missing_reply(LATE, moving, move=True)
    assert name == 'no answer: MessagingTimeout, no claim'
    write_claims(store, move_of(snapshot, claim.consumer))
    name = cloud.missing_reply(LATE, moving, move=True)
    assert name == 'no answer: MessagingTimeout'
