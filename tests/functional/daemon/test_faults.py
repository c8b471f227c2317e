"""The scenarios of benchmarks.faults, with fewer of everything."""

from __future__ import annotations

import pytest

from tests.support import (
    clouds,
    faults,
    servers,
)

pytestmark = [pytest.mark.broker, pytest.mark.db, pytest.mark.slow]


def test_casts_are_answered_when_daemons_are_killed(quorum_bus, postgresql):
    with clouds.cloud(postgresql[1], quorum_bus, daemons=2) as cloud:
        told = faults.casts(cloud, 150, faults.killing(cloud, every=1.0))
    assert told['kills'] >= 1
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
