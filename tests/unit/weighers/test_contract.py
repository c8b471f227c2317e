"""Every built-in weigher keeps the promise of its key."""

import dataclasses

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_service.columns.topology import EACH_TIME
from scheduler_service.model import documents
from scheduler_service.testing import table
from scheduler_service.weighers import BUILT_IN
from tests.support import filter_strategies
from tests.support.filter_strategies import GROUP, inventories

WEIGHERS = [kind() for kind in BUILT_IN]
SETTINGS = dataclasses.replace(
    filter_strategies.SETTINGS,
    image_props_weight_multiplier=1.0,
    metrics_required=False,
)
policies = st.sampled_from(['soft-affinity', 'soft-anti-affinity', 'affinity'])
requests = st.fixed_dictionaries(
    {
        'instance_group': st.sampled_from([None, GROUP]),
        'image': st.fixed_dictionaries(
            {
                'properties': st.dictionaries(
                    st.just('os_distro'), filter_strategies.words
                )
            }
        ),
        'requested_destination': st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {
                    'cell': st.sampled_from([None, 'cell-1', 'cell-2']),
                    'allow_cross_cell_move': st.booleans(),
                }
            ),
        ),
    }
)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    inventory=inventories, policy=policies, pair=st.tuples(requests, requests)
)
def test_requests_with_equal_keys_have_equal_weights(inventory, policy, pair):
    hosts = table(
        {
            **inventory,
            'server_groups': [
                {**group, 'policy': policy}
                for group in inventory['server_groups']
            ],
        }
    )
    every = slice(None)
    for weigher in WEIGHERS:
        found = []
        for document in pair:
            request = documents.request(document).with_ids()
            key = weigher.weight_key(hosts, request, SETTINGS)
            weights = weigher.weigh(hosts, every, request, SETTINGS)
            assert key is not None or weights is None, weigher.name
            found.append((key, None if weights is None else weights.tolist()))
        (key, weights), (other_key, other_weights) = found
        if key is not EACH_TIME and key == other_key:
            assert weights == other_weights, weigher.name
