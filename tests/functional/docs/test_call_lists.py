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
# The database beside each bus.
DATABASES = {'inproc': 'sqlite', 'rabbit': 'postgresql'}
# What is not called there.
UNUSED = {
    'inproc': ('bus.consumer:', 'store.claims.pg_'),
    'rabbit': ('store.claims.batch:claim_all',),
}


@pytest.fixture
def recorder():
    made = Recorder()
    made.install()
    made.start()
    yield made
    made.uninstall()
    made.stop()


@pytest.fixture(
    params=[
        'inproc',
        pytest.param('rabbit', marks=[pytest.mark.broker, pytest.mark.db]),
    ]
)
def check(recorder, make_service, request):
    """Give a function that starts a daemon, and one that compares a list."""
    bus = request.param

    def start(**options):
        service = make_service(bus, DATABASES[bus], **options)
        recorder.uninstall()
        return service

    def compare(title):
        rows = [
            (name, thread)
            for name, thread in LISTS[title]
            if not name.startswith(UNUSED[bus])
        ]
        assert len(rows) > 4
        try:
            wait_until(lambda: not recorder.recorded().missing(rows), 5)
        except AssertionError:
            missing = recorder.recorded().missing(rows)
            pytest.fail(f'not called in turn: {missing}')

    return start, compare


def test_the_way_of_one_request(check):
    start, compare = check
    start().client.select_destinations(CONTEXT, {'flavor': SMALL})
    compare('The way of one request')


def test_a_zone(check):
    start, compare = check
    start().client.schedule_zone(CONTEXT, {'name': 'zone.example.'})
    compare('A zone')


@pytest.mark.parametrize(
    ('verb', 'title'),
    [('select', 'The way of one request'), ('zone', 'A zone')],
)
def test_a_list_has_what_the_tool_prints_of_each_thread(verb, title):
    rows = [
        row for row in LISTS[title] if not row[0].startswith(UNUSED['inproc'])
    ]
    recording, idle = request_path.record(verb, embedded=True)
    found = recording.without(idle)
    assert recording.missing(rows) == []
    # A thread that works now and then may have done so just now.
    assert {thread for _, thread in rows} <= {*found.threads()}
    assert len(LISTS[title]) <= 25
