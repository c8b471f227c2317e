"""TypeAffinityFilter gives each host instances of one flavor."""

from __future__ import annotations

from scheduler_service.filters.hosts.type_affinity_filter import (
    TypeAffinityFilter,
)
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
