"""NumInstancesFilter limits the instances of a host."""

from __future__ import annotations

from scheduler_service.filters.hosts.num_instances_filter import (
    NumInstancesFilter,
)
from tests.support.plugins import instance, inventory, passing, reason

HOSTS = inventory(
    a={'num_instances': 2}, b={'num_instances': 1}, c={'num_instances': 0}
)


def test_hosts_below_the_limit_pass():
    hosts = passing(NumInstancesFilter(), HOSTS, max_instances_per_host=2)
    assert hosts == ['b', 'c']


def test_instances_are_counted_where_a_host_does_not_report_their_number():
    document = inventory(
        a={},
        b={'num_instances': 0},
        instances=(instance(1, 'a'), instance(2, 'b')),
    )
    hosts = passing(NumInstancesFilter(), document, max_instances_per_host=1)
    assert hosts == ['b']


def test_the_reason_gives_the_count_and_the_limit():
    sentence = reason(NumInstancesFilter(), HOSTS, max_instances_per_host=2)
    assert sentence == 'the host has 2 instances, and must have fewer than 2'
