"""One odd host changes no other host's weight, and gets the worst itself."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from scheduler_service.model import Host, documents
from scheduler_service.pipeline.weighing import Weighing, raw_weights
from scheduler_service.weighers import BUILT_IN
from scheduler_service.weighers.host_order_weigher import HostOrderWeigher
from scheduler_service.weighers.host_weigher import PCIWeigher
from scheduler_service.weighers.metrics_weigher import MetricsWeigher
from tests.support import filter_strategies
from tests.support.filter_strategies import GROUP, inventories
from tests.support.odd_hosts import odd_hosts, odd_metadata, unchecked_table

WEIGHERS = [kind() for kind in BUILT_IN]
SETTINGS = dataclasses.replace(
    filter_strategies.SETTINGS,
    image_props_weight_multiplier=1.0,
    num_instances_weight_multiplier=1.0,
    metrics_required=False,
)
REQUEST = documents.request(
    {
        'instance_group': GROUP,
        'image': {'properties': {'os_distro': 'x'}},
        'requested_destination': {
            'cell': 'cell-1',
            'allow_cross_cell_move': True,
        },
    }
).with_ids()
EVERY = slice(None)


def places(weights):
    """Return the place of each weight among the different ones, int[n]."""
    return np.unique(weights, return_inverse=True)[1]


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(inventory=inventories, odd=odd_hosts(), metadata=odd_metadata)
def test_weights_of_others_stay_when_one_host_is_odd(inventory, odd, metadata):
    before = unchecked_table(inventory)
    after = unchecked_table(inventory, odd, metadata)
    count = len(before)
    for weigher in WEIGHERS:
        expected = raw_weights(weigher, before, EVERY, REQUEST, SETTINGS)
        found = raw_weights(weigher, after, EVERY, REQUEST, SETTINGS)
        assert (found is None) == (expected is None), weigher.name
        if found is not None:
            others = found[:count]
            if isinstance(weigher, HostOrderWeigher):
                # Its weights are places in an order of all hosts.
                others, expected = places(others), places(expected)
            assert others.tolist() == expected.tolist(), weigher.name
            assert np.isfinite(found).all(), weigher.name
    weighing = Weighing(WEIGHERS, SETTINGS)
    ranking = weighing.rank(
        after,
        np.ones(len(after), np.bool_),
        REQUEST,
        weighing.terms(after, REQUEST),
    )
    assert np.isfinite(ranking.totals).all()


@pytest.mark.parametrize(('multiplier', 'worst'), [(1.0, 92.0), (-1.0, 98.0)])
def test_a_host_has_the_worst_weight_when_its_devices_are_odd(
    multiplier, worst
):
    document = {
        'hosts': [
            {'host': name, 'pci_device_pools': [{'count': count}]}
            for name, count in (('a', 2), ('b', 8))
        ]
    }
    odd = Host(host='odd', pci_device_pools=[{'count': 'abc'}])
    table = unchecked_table(document, odd, {})
    chosen = dataclasses.replace(SETTINGS, pci_weight_multiplier=multiplier)
    weights = raw_weights(PCIWeigher(), table, EVERY, REQUEST, chosen)
    assert weights.tolist() == [98.0, 92.0, worst]


def test_a_host_has_the_worst_weight_when_its_metric_is_odd():
    document = {
        'hosts': [
            {'host': name, 'metrics': [{'name': 'load', 'value': value}]}
            for name, value in (('a', 1.0), ('b', 3.0))
        ]
    }
    odd = Host(host='odd', metrics=[{'name': 'load', 'value': 'high'}])
    table = unchecked_table(document, odd, {})
    weights = raw_weights(MetricsWeigher(), table, EVERY, REQUEST, SETTINGS)
    assert weights.tolist() == [1.0, 3.0, 1.0]
