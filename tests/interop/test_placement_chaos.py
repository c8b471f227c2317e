"""Both books agree, whatever happens; see benchmarks.chaos."""

import pytest

from tests.rigs import chaos, placement_chaos
from tests.support import servers

pytestmark = pytest.mark.slow


# See clouds.clean.
@pytest.mark.filterwarnings('ignore:unclosed <socket:ResourceWarning')
def test_allocations_are_those_of_claims_whatever_happens():
    with (
        servers.rabbitmq() as (broker, bus),
        servers.postgresql(durable=True) as (server, base),
        # Use that is counted twice until providers are read again is no fault:
        # a minute of that would be a minute of waiting.
        placement_chaos.cloud(
            base, bus, daemons=2, workers=1, interval_s=10.0
        ) as cloud,
    ):
        told = chaos.run(
            cloud,
            broker,
            server,
            callers=4,
            seconds=10,
            every=1,
            # One that comes to each of the faults below early.
            seed=6,
            least_faults=4,
            least_placed=6,
            kind=placement_chaos.PlacementCaller,
            more=(cloud.restart_placement,),
        )
    assert {'kill', 'stop', 'restart_placement'} <= told['faults'].keys()
    assert told['wrong'] == []
    assert told['untrue'] == []
    assert told['books'] == []
