"""The bus inside one process behaves as a broker does."""

import queue
import threading
import time
import uuid

import oslo_messaging
import pytest

from scheduler_service import conf as options
from scheduler_service.bus import wire
from scheduler_service.cmd import adapters
from scheduler_service.engine.health import Health
from scheduler_service.rpc import transport
from tests.support.waiting import LIMIT_S


class Endpoint:
    """Answers, raises, and records what was cast."""

    def __init__(self) -> None:
        self.casts: queue.Queue[object] = queue.Queue()

    def echo(self, ctxt, value):
        return [ctxt, value]

    def fail(self, ctxt):
        raise ValueError('no')

    def note(self, ctxt, value) -> None:
        self.casts.put(value)


class Bus:
    """One bus of a name of its own, with servers on it."""

    def __init__(self) -> None:
        self._conf = adapters.new_config()
        transport.prepare(self._conf)
        options.parse(
            self._conf, [], default_config_files=[], default_config_dirs=[]
        )
        self._url = f'inproc://{uuid.uuid4().hex}/'
        self._servers: list[object] = []

    def client(self, **target):
        bus = transport.for_client(self._conf, self._url)
        return oslo_messaging.get_rpc_client(
            bus, transport.Target(topic='t', **target), timeout=LIMIT_S
        )

    def serve(self, name: str) -> Endpoint:
        endpoint = Endpoint()
        server = oslo_messaging.get_rpc_server(
            transport.for_client(self._conf, self._url),
            transport.Target(topic='t', server=name),
            [endpoint],
        )
        server.start()
        self._servers.append(server)
        return endpoint

    def stop(self) -> None:
        # Their idle threads end by themselves, a second later.
        for server in self._servers:
            server.stop()


@pytest.fixture
def bus():
    made = Bus()
    yield made
    made.stop()


def test_values_are_those_of_json_when_a_call_is_answered(bus):
    bus.serve('one')
    answer = bus.client().call({'user_id': 'u'}, 'echo', value={'a': (1, 2)})
    assert answer == [{'user_id': 'u'}, {'a': [1, 2]}]


def test_error_is_raised_when_a_call_fails(bus):
    bus.serve('one')
    with pytest.raises(Exception, match='no') as caught:
        bus.client().call({}, 'fail')
    assert type(caught.value).__name__ in ('ValueError', 'RemoteError')


def test_call_times_out_when_nobody_answers(bus):
    client = bus.client().prepare(timeout=0.1)
    with pytest.raises(oslo_messaging.MessagingTimeout):
        client.call({}, 'echo', value=1)


def test_cast_waits_when_nobody_listens_yet(bus):
    bus.client().cast({}, 'note', value=1)
    assert bus.serve('late').casts.get(timeout=LIMIT_S) == 1


def test_cast_reaches_one_server_when_several_listen(bus):
    served = [bus.serve('one'), bus.serve('two')]
    for value in range(20):
        bus.client().cast({}, 'note', value=value)
    seen = sorted(drain(served, 20))
    assert seen == list(range(20))


def test_cast_reaches_the_server_when_one_is_named(bus):
    first, second = bus.serve('one'), bus.serve('two')
    bus.client(server='two').cast({}, 'note', value=1)
    assert second.casts.get(timeout=LIMIT_S) == 1
    assert first.casts.empty()


def test_cast_reaches_every_server_when_it_is_a_fanout(bus):
    served = [bus.serve('one'), bus.serve('two')]
    bus.client(fanout=True).cast({}, 'note', value=1)
    assert [one.casts.get(timeout=LIMIT_S) for one in served] == [1, 1]


def test_buses_are_apart_when_their_names_differ(bus):
    other = Bus()
    try:
        theirs = other.serve('one')
        mine = bus.serve('one')
        bus.client().cast({}, 'note', value=1)
        assert mine.casts.get(timeout=LIMIT_S) == 1
        assert theirs.casts.empty()
    finally:
        other.stop()


def test_calls_are_answered_when_many_threads_call(bus):
    bus.serve('one')
    client = bus.client()
    answers: list[int] = []

    def call(value: int) -> None:
        answers.append(client.call({}, 'echo', value=value)[1])

    threads = [threading.Thread(target=call, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == list(range(20))


def test_a_request_that_is_held_comes_again_as_redelivered():
    conf = adapters.new_config()
    transport.prepare(conf)
    options.parse(conf, [], default_config_files=[], default_config_dirs=[])
    url = f'inproc://{uuid.uuid4().hex}/'
    taken: queue.Queue[wire.Request] = queue.Queue()
    consumer = transport.new_consumer(
        conf, url, transport.Target('e', 't', server='s'), taken.put, Health()
    )
    consumer.start()
    driver = transport.for_client(conf, url)._driver
    target = transport.Target(topic='t', exchange='e')
    for method in ('m', 'n'):
        driver.send(target, {'user_id': 'u'}, {'method': method})
    first, second = taken.get(timeout=LIMIT_S), taken.get(timeout=LIMIT_S)
    second.requeue()
    first.requeue()
    again = taken.get(timeout=LIMIT_S)
    if again.method == 'n':
        again = taken.get(timeout=LIMIT_S)
    consumer.close()
    assert again.unique_id == first.unique_id
    assert (again.redelivered, again.ctxt) == (True, {'user_id': 'u'})
    assert not again.is_call


def drain(served: list[Endpoint], count: int) -> list[object]:
    """Return as many casts as expected, from any of some servers."""
    found: list[object] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        for one in served:
            try:
                found.append(one.casts.get(timeout=0.01))
            except queue.Empty:
                continue
    return found
