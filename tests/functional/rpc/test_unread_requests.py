"""Requests that a daemon reads some time after they came."""

import threading
import time
import uuid

import pytest

from scheduler_service.store.claims import lifecycle, outcomes
from tests.support.documents import CONTEXT, SMALL
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.broker


@pytest.mark.parametrize('sent', ['before the request', 'after it'])
def test_a_release_ends_a_request_that_was_sent_before_it_and_not_read(
    make_service, sent
):
    service = make_service('rabbit')
    answers = service.answers(topic := f't{uuid.uuid4().hex}')
    (server,) = service.daemon._servers
    read, wanted = threading.Event(), str(uuid.uuid4())
    server.bus.call(read.wait, 30)
    earlier = time.time()
    service.client.select_destinations_cast(
        CONTEXT,
        {'flavor': SMALL, 'instance_uuids': [wanted]},
        reply_to={'topic': topic},
    )
    sent_at = earlier if sent == 'before the request' else time.time()
    # As another daemon does it.
    released = {wanted: outcomes.ReleaseRequest(sent_at)}
    assert service.store.write(lambda w: lifecycle.cancel(w, released)) == []
    read.set()
    told = answers.get(timeout=LIMIT_S)
    if sent == 'before the request':
        assert told['error'] is None
    else:
        assert told['error']['name'] == 'RequestCancelled'
