"""Used hosts come before empty ones, which have an order."""

import numpy as np

from scheduler_service.columns import Overlay
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from scheduler_service.weighers.host_order_weigher import HostOrderWeigher
from tests.support.plugins import raw_weights

SETTINGS = Settings(host_order_weight_multiplier=1.0)


def host(name, vcpus, memory_gb, **more):
    return {
        'host': name,
        'vcpus': vcpus,
        'memory_mb': 1024 * memory_gb,
        **more,
    }


def order(*hosts, aggregates=()):
    """Return the hosts by their weights, the largest first."""
    document = {'hosts': list(hosts), 'aggregates': list(aggregates)}
    weights = raw_weights(HostOrderWeigher(), document)
    assert len(set(weights.values())) == len(weights)
    assert all(0 < weight <= 1 for weight in weights.values())
    return sorted(weights, key=weights.get, reverse=True)


def numbered(number, text, *hosts):
    metadata = {'host_order': text}
    return {'id': number, 'hosts': list(hosts), 'metadata': metadata}


def test_used_hosts_come_first_and_then_large_ones():
    assert order(
        host('small', 4, 16),
        host('large', 64, 256),
        host('more memory', 64, 262),
        host('used', 2, 8, num_instances=1),
    ) == ['used', 'more memory', 'large', 'small']


def test_number_of_the_aggregates_comes_before_the_size():
    """The least number counts, 0 where none is or one is no number."""
    assert order(
        host('last', 64, 256),
        host('unnumbered', 8, 32),
        host('no number', 4, 16),
        host('first', 2, 8),
        aggregates=[
            numbered(1, '5', 'last'),
            numbered(2, '-1', 'first'),
            numbered(3, '7', 'first'),
            numbered(4, 'soon', 'no number'),
        ],
    ) == ['first', 'unnumbered', 'no number', 'last']


def weights_beside_rare_hosts(rare, common):
    hosts = [host(f'common-{at}', 32, 128) for at in range(common)]
    hosts += [host(f'rare-{at}', 32, 256) for at in range(rare)]
    weights = raw_weights(HostOrderWeigher(), {'hosts': hosts})
    return weights['rare-0'], weights['common-0']


def test_kinds_of_less_than_a_twentieth_come_last():
    rare, common = weights_beside_rare_hosts(1, 20)
    assert rare < common
    rare, common = weights_beside_rare_hosts(1, 19)
    assert rare > common


def test_memory_that_differs_a_little_makes_no_kind():
    hosts = [host(f'h{at}', 32, 128) for at in range(30)]
    hosts.append(host('odd', 32, 127, memory_mb=130500))
    weights = raw_weights(HostOrderWeigher(), {'hosts': hosts})
    assert weights['odd'] < weights['h0']
    hosts.append(host('small', 16, 64))
    weights = raw_weights(HostOrderWeigher(), {'hosts': hosts})
    assert weights['odd'] > weights['small']


def test_next_host_is_opened_only_once_the_used_one_is_full():
    hosts = table({'hosts': [host('small', 2, 8), host('large', 4, 16)]})
    settings = Settings(
        cpu_allocation_ratio=1.0, host_order_weight_multiplier=1.0
    )
    pipeline = HostPipeline([], [HostOrderWeigher()], settings)
    overlay, rng = Overlay(hosts), np.random.default_rng(0)
    flavor = {'vcpus': 1, 'memory_mb': 1}
    chosen = []
    for _ in range(6):
        request = documents.request({'flavor': flavor}).with_ids()
        result = pipeline.select(overlay, request, rng)
        chosen.append(result.assignments[0].placed.host)
    assert chosen == ['large'] * 4 + ['small'] * 2
