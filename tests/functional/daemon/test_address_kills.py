"""Daemons with a plug-in's stage are killed at each point of its calls."""

from __future__ import annotations

import os

import pytest

from scheduler_service.store.connection import Store
from tests.rigs.address_kills import POINTS, Kills, config
from tests.rigs.address_service import AddressService
from tests.support.databases import ready_database
from tests.support.waiting import LIMIT_S

pytestmark = [pytest.mark.broker, pytest.mark.slow]
# More of them, where somebody asks for it.
_ROUNDS = int(os.environ.get('TEST_ADDRESS_KILLS', len(POINTS)))


@pytest.mark.parametrize('kind', [
    'sqlite', pytest.param('postgresql', marks=pytest.mark.db),
])  # fmt: skip
def test_addresses_are_those_of_claims_whenever_daemons_are_killed(
    kind, launch, connect, rabbitmq, topic, request
):
    if kind == 'sqlite':
        database = request.getfixturevalue('ready_sqlite')
    else:
        database = ready_database(request.getfixturevalue(kind)[1])
    service = AddressService()
    store = Store.connect(database)
    with service.running():

        def start():
            running = launch(database, rabbitmq[1], config(topic, service.url))
            running.wait_for('Ready:')
            return running

        client = connect(rabbitmq[1], topic, timeout=LIMIT_S)
        kills = Kills(service, store, start, client, seed=_ROUNDS)
        kills.run(_ROUNDS)
    store.dispose()
    assert kills.wrong == []
    assert kills.kills == _ROUNDS
    assert kills.answers > kills.failures
