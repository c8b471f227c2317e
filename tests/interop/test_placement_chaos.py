"""Both books agree, whatever happens; see benchmarks.chaos."""

import pytest

from tests.support import chaos, placement_chaos, servers

pytestmark = pytest.mark.slow


# See clouds.clean.
@pytest.mark.filterwarnings('ignore:unclosed <socket:ResourceWarning')
def test_allocations_are_those_of_claims_whatever_happens():
    with (
        servers.rabbitmq() as (broker, bus),
        servers.postgresql(durable=True) as (server, base),
        placement_chaos.cloud(base, bus, daemons=2) as cloud,
    ):
        told = chaos.run(
            cloud,
            broker,
            server,
            callers=4,
            seconds=20,
            every=2,
            kind=placement_chaos.PlacementCaller,
            more=(cloud.restart_placement,),
        )
    assert sum(told['faults'].values()) >= 3
    assert told['calls']['placed'] > 5
    assert told['wrong'] == []
    assert told['untrue'] == []
    assert told['books'] == []
