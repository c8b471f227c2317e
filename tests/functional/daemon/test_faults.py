"""The scenarios of benchmarks.faults and .chaos, with fewer of everything."""

import pytest

from tests.support import (
    chaos,
    clouds,
    faults,
    servers,
)

pytestmark = [pytest.mark.broker, pytest.mark.db, pytest.mark.slow]


def test_nothing_is_dropped_at_the_delivery_limit(rabbitmq, postgresql):
    """More daemons are killed than deliveries of a message are allowed.

    A kill counts for all that the daemon had, worked on or not. The
    benchmark has 30 kills and a limit of 20.
    """
    bus = servers.new_vhost(*rabbitmq)
    limit = '[oslo_messaging_rabbit]\nrabbit_quorum_delivery_limit = 3\n'
    with clouds.cloud(postgresql[1], bus, 2, limit) as cloud:
        told = faults.casts(cloud, 120, faults.killing(cloud, 0.8), 9.0)
    assert told['kills'] >= 5
    faults.check(told)


# See clouds.clean.
@pytest.mark.filterwarnings('ignore:unclosed <socket:ResourceWarning')
def test_casts_are_answered_when_the_broker_restarts(postgresql):
    with (
        servers.rabbitmq() as (server, bus),
        clouds.cloud(postgresql[1], bus, daemons=2) as cloud,
    ):
        again = faults.restarting(server, times=1)
        told = faults.casts(cloud, 100, again)
    faults.check(told)


def test_casts_are_answered_when_the_database_restarts(quorum_bus):
    with (
        servers.postgresql(durable=False) as (server, base),
        clouds.cloud(base, quorum_bus, daemons=2) as cloud,
    ):
        again = faults.restarting(server, times=1)
        told = faults.casts(cloud, 100, again)
    faults.check(told)


# See clouds.clean.
@pytest.mark.filterwarnings('ignore:unclosed <socket:ResourceWarning')
def test_answers_continue_when_the_disk_of_the_broker_was_full(postgresql):
    with (
        servers.rabbitmq() as (server, bus),
        clouds.cloud(postgresql[1], bus, daemons=1) as cloud,
    ):
        told = faults.full_disk(cloud, server, requests=20)
    assert told['said'] == 1
    faults.check(told)


# See clouds.clean.
@pytest.mark.filterwarnings('ignore:unclosed <socket:ResourceWarning')
@pytest.mark.parametrize('kind', ['postgresql', 'mariadb'])
def test_rows_are_what_callers_were_told_whatever_happens(kind):
    database = getattr(servers, kind)
    with (
        servers.rabbitmq() as (broker, bus),
        database(durable=True) as (server, base),
        clouds.cloud(base, bus, daemons=2) as cloud,
    ):
        told = chaos.run(
            cloud, broker, server, callers=4, seconds=14, every=1.4
        )
    assert sum(told['faults'].values()) >= 5
    assert told['calls']['placed'] > 20
    assert told['wrong'] == []
    assert told['untrue'] == []
    assert told['books'] == []
