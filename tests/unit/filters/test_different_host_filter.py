"""DifferentHostFilter rejects the hosts of named instances."""

from __future__ import annotations

import pytest

from scheduler_service.filters.hosts.different_host_filter import (
    DifferentHostFilter,
)
from tests.support.plugins import (
    has_opinion,
    instance,
    inventory,
    passing,
    reason,
    uuid,
)

HOSTS = inventory(
    a={}, b={}, c={}, instances=(instance(1, 'a'), instance(2, 'b'))
)


def hint(value):
    return {'scheduler_hints': {'different_host': value}}


@pytest.mark.parametrize(
    ('value', 'expected'),
    [
        (uuid(1), ['b', 'c']),
        ([uuid(1)], ['b', 'c']),
        ([uuid(1), uuid(2)], ['c']),
        # An instance that is not known is on no host.
        ([uuid(9)], ['a', 'b', 'c']),
        ([uuid(1), uuid(9)], ['b', 'c']),
    ],
)
def test_hosts_with_a_named_instance_fail(value, expected):
    assert passing(DifferentHostFilter(), HOSTS, hint(value)) == expected


@pytest.mark.parametrize('value', [None, [], '', ['']])
def test_it_has_no_opinion_without_the_hint(value):
    assert not has_opinion(DifferentHostFilter(), HOSTS, hint(value))


def test_all_nodes_of_a_service_host_fail():
    document = {
        'hosts': [
            {'host': 'a', 'hypervisor_hostname': 'a-1'},
            {'host': 'a', 'hypervisor_hostname': 'a-2'},
        ],
        'instances': [instance(1, 'a', hypervisor_hostname='a-1')],
    }
    assert passing(DifferentHostFilter(), document, hint(uuid(1))) == []


def test_the_reason_names_the_hint():
    assert reason(DifferentHostFilter(), HOSTS, hint(uuid(1))) == (
        'an instance named by the hint different_host is on this host'
    )
