"""Rows are what callers were told, whatever happens; see benchmarks.chaos."""

from __future__ import annotations

import pytest

from tests.support import chaos, clouds, servers

pytestmark = [pytest.mark.broker, pytest.mark.db, pytest.mark.slow]


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
        told = chaos.run(cloud, broker, server, callers=4, seconds=20, every=2)
    assert sum(told['faults'].values()) >= 5
    assert told['calls']['placed'] > 20
    assert told['wrong'] == []
    assert told['untrue'] == []
    assert told['books'] == []
