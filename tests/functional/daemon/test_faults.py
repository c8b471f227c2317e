"""The scenarios of benchmarks.faults and .chaos, with fewer of everything."""

import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from scheduler_service.store.records.daemons import since
from tests.rigs import chaos, faults
from tests.support import (
    clouds,
    servers,
)
from tests.support.waiting import LIMIT_S

pytestmark = [pytest.mark.broker, pytest.mark.db, pytest.mark.slow]
# What is said of a machine that is slow, and of an outage that is long.
NOISE = 'the last batch', 'No batch takes more', 'Still degraded'


@pytest.fixture(scope='module')
def module_broker() -> Iterator[tuple[servers.Server, str]]:
    """A broker that tests do things to, one after the other."""
    with servers.rabbitmq() as made:
        yield made


@pytest.fixture
def broker(module_broker) -> tuple[servers.Server, str]:
    """The same as it is at first, and the URL of a virtual host."""
    server, url = module_broker
    if server.process.poll() is not None:
        server.relaunch()
        server.wait(lambda: servers.answers(server.port))
    servers.evaluate(server, servers.STARTED)
    return server, servers.new_vhost(server, url)


def test_nothing_is_dropped_at_the_delivery_limit(rabbitmq, postgresql):
    """More daemons are killed than deliveries of a message are allowed.

    A kill counts for all that the daemon had, worked on or not. The
    benchmark has 30 kills and a limit of 20.
    """
    bus = servers.new_vhost(*rabbitmq)
    limit = '[oslo_messaging_rabbit]\nrabbit_quorum_delivery_limit = 3\n'
    with clouds.cloud(postgresql[1], bus, 2, limit) as cloud:
        told = faults.casts(cloud, 80, faults.killing(cloud, 0.8), 6.5)
    assert told['kills'] >= 5
    faults.check(told)


# See clouds.clean.
@pytest.mark.filterwarnings('ignore:unclosed <socket:ResourceWarning')
def test_casts_are_answered_when_the_broker_restarts(broker, postgresql):
    """Each daemon logs two lines of that, and none of its end."""
    server, bus = broker
    with clouds.cloud(postgresql[1], bus, daemons=2) as cloud:
        again = faults.restarting(server, times=1)
        told = faults.casts(cloud, 50, again, 5.0)
        cloud.signal(signal.SIGTERM)
        assert [one.wait(LIMIT_S) for one in cloud.running] == [0, 0]
        with cloud.store.reading() as conn:
            happened = Counter(row['event'] for row in since(conn, 0.0))
        assert happened == {'started': 2, 'broker away': 2, 'stopped': 2}
        lines = [
            line
            for line in cloud.log.read_text().splitlines()
            if (' WARNING ' in line or ' ERROR ' in line)
            and not any(text in line for text in NOISE)
        ]
    faults.check(told)
    lost = [one for one in lines if 'Degraded: broker unreachable' in one]
    # A broker that is told to end says so, one that is killed does not.
    assert all(f'(127.0.0.1:{server.port}: ' in line for line in lost)
    back = [one for one in lines if 'Broker reachable again' in one]
    assert (len(lost), len(back), len(lines)) == (2, 2, 4), lines


def test_casts_are_answered_when_the_database_restarts(quorum_bus):
    with (
        servers.postgresql(durable=False) as (server, base),
        clouds.cloud(base, quorum_bus, daemons=2) as cloud,
    ):
        again = faults.restarting(server, times=1)
        told = faults.casts(cloud, 50, again, 5.0)
    faults.check(told)


# See clouds.clean.
@pytest.mark.filterwarnings('ignore:unclosed <socket:ResourceWarning')
def test_answers_continue_when_the_disk_of_the_broker_was_full(
    broker, postgresql
):
    server, bus = broker
    with clouds.cloud(postgresql[1], bus, daemons=1) as cloud:
        told = faults.full_disk(cloud, server, requests=20)
    assert told['said'] == 1
    faults.check(told)


# See clouds.clean.
@pytest.mark.filterwarnings('ignore:unclosed <socket:ResourceWarning')
@pytest.mark.parametrize('kind', ['postgresql', 'mariadb'])
def test_rows_are_what_callers_were_told_whatever_happens(kind, broker):
    database = getattr(servers, kind)
    with (
        database(durable=True) as (server, base),
        clouds.cloud(base, broker[1], daemons=2) as cloud,
    ):
        # The seed is one that comes to each of the faults below early.
        told = chaos.run(
            cloud, broker[0], server, callers=4, seconds=9, every=1, seed=6,
            least_faults=4, least_placed=21,
        )  # fmt: skip
    assert {'kill', 'stop', 'restart_database'} <= told['faults'].keys()
    assert told['wrong'] == []
    assert told['untrue'] == []
    assert told['books'] == []
