"""The call lists of the architecture page are what a daemon calls.

Each list is compared with a recording, thread by thread: what it names is
called there in this order, with other functions in between. A function that
the bus or the database of a test does not use is left out.
"""

import pytest

from tests.support.documents import CONTEXT, SMALL
from tests.support.pages import ARCHITECTURE, call_lists
from tests.support.recording import Recorder
from tests.support.waiting import wait_until
from tools import request_path

LISTS = call_lists(ARCHITECTURE.read_text())
# What is not called with SQLite in one process, and on servers.
EMBEDDED = 'bus.consumer:', 'store.claims.pg_'
SERVERS = 'store.claims.batch:ClaimBatch.make'


@pytest.fixture
def recorder():
    made = Recorder()
    made.install()
    made.start()
    yield made
    made.uninstall()
    made.stop()


@pytest.mark.broker
@pytest.mark.db
def test_a_list_has_what_a_daemon_on_servers_calls(recorder, make_service):
    client = make_service('rabbit', 'postgresql').client
    recorder.uninstall()
    client.select_destinations(CONTEXT, {'flavor': SMALL})
    client.schedule_zone(CONTEXT, {'name': 'zone.example.'})
    for title in LISTS:
        rows = [row for row in LISTS[title] if not row[0].startswith(SERVERS)]
        assert len(rows) > 4
        try:
            wait_until(lambda: not recorder.recorded().missing(rows))  # noqa: B023
        except AssertionError:
            missing = recorder.recorded().missing(rows)
            pytest.fail(f'not called in turn: {missing}')


@pytest.mark.parametrize(
    ('verb', 'title'),
    [('select', 'The way of one request'), ('zone', 'A zone')],
)
def test_a_list_has_what_the_tool_prints_of_each_thread(
    verb, title, monkeypatch
):
    monkeypatch.setattr(request_path, '_IDLE_S', 1.0)
    rows = [row for row in LISTS[title] if not row[0].startswith(EMBEDDED)]
    recording, idle = request_path.record(verb, embedded=True)
    found = recording.without(idle)
    assert recording.missing(rows) == []
    # A thread that works now and then may have done so just now.
    assert {thread for _, thread in rows} <= {*found.threads()}
    assert len(LISTS[title]) <= 25
