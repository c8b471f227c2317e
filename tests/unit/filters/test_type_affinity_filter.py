"""TypeAffinityFilter gives each host instances of one flavor."""

import random

from scheduler_service.columns import Overlay
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.filters.hosts.type_affinity_filter import (
    TypeAffinityFilter,
)
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from tests.support.plugins import instance, inventory, passing, reason

SMALL, LARGE = {'flavorid': '1'}, {'flavorid': '2'}
# a has small instances, b small and large ones, c an unknown one, d none.
HOSTS = inventory(
    a={},
    b={},
    c={},
    d={},
    instances=(
        instance(1, 'a', flavor=SMALL),
        instance(2, 'a', flavor=SMALL),
        instance(3, 'b', flavor=SMALL),
        instance(4, 'b', flavor=LARGE),
        instance(5, 'c'),
    ),
)


def test_hosts_with_instances_of_other_flavors_fail():
    assert passing(TypeAffinityFilter(), HOSTS, {'flavor': SMALL}) == [
        'a',
        'd',
    ]
    assert passing(TypeAffinityFilter(), HOSTS, {'flavor': LARGE}) == ['d']


def test_flavors_are_compared_by_id_not_by_name():
    request = {'flavor': {'flavorid': '1', 'name': 'renamed'}}
    assert passing(TypeAffinityFilter(), HOSTS, request) == ['a', 'd']


def test_the_reason_names_the_flavors_of_the_host():
    request = {'flavor': LARGE}
    assert reason(TypeAffinityFilter(), HOSTS, request, host='b') == (
        'the host has instances of the flavors 1, 2; the request has 2'
    )


def test_an_instance_may_join_those_of_its_request():
    hosts = table(inventory(a={'vcpus': 4, 'memory_mb': 1, 'local_gb': 1}))
    request = documents.request({'flavor': SMALL, 'num_instances': 2})
    result = HostPipeline([TypeAffinityFilter()], [], Settings()).select(
        Overlay(hosts), request.with_ids(), random.Random(1)
    )
    assert len(result.assignments) == 2
    other = documents.request({'flavor': LARGE}).with_ids()
    mask = TypeAffinityFilter().mask(hosts, other, Settings())
    assert mask.tolist() == [False]


def test_all_nodes_of_a_host_have_its_instances():
    hosts = table(
        {
            'hosts': [
                {'host': 'a', 'hypervisor_hostname': 'a1'},
                {'host': 'a', 'hypervisor_hostname': 'a2'},
                {'host': 'b'},
            ]
        }
    )
    request = documents.request({'flavor': SMALL}).with_ids()
    arguments = hosts, request, Settings()
    assert TypeAffinityFilter().mask(*arguments).all()
    overlay = Overlay(hosts)
    overlay.assume(0, {}, PlacedInstance('1', 'a', 'a2', flavorid='2'))
    mask = TypeAffinityFilter().mask(*arguments)
    assert mask.tolist() == [False, False, True]
    overlay.forget()
    assert TypeAffinityFilter().mask(*arguments).all()
