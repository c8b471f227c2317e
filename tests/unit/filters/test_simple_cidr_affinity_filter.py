"""SimpleCIDRAffinityFilter passes hosts in a network."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.filters.hosts.simple_cidr_affinity_filter import (
    SimpleCIDRAffinityFilter,
)
from tests.support.plugins import has_opinion, inventory, passing, reason

HOSTS = inventory(
    a={'host_ip': '10.8.1.1'},
    b={'host_ip': '10.8.2.1'},
    c={'host_ip': '192.168.0.9'},
    d={'host_ip': 'fd00::5'},
)


def near(address, *cidr):
    hints = {'build_near_host_ip': address}
    if cidr:
        hints['cidr'] = cidr[0]
    return {'scheduler_hints': hints}


@pytest.mark.parametrize(
    ('request_', 'expected'),
    [
        (near('10.8.1.100'), ['a']),
        (near('10.8.1.100', '/24'), ['a']),
        (near('10.8.1.100', '24'), ['a']),
        (near('10.8.1.100', '/255.255.255.0'), ['a']),
        (near('10.8.1.100', '/16'), ['a', 'b']),
        (near('10.8.1.100', '/32'), []),
        (near('10.8.1.1', '/32'), ['a']),
        # An empty size means the address alone, no size means /24.
        (near('10.8.1.1', ''), ['a']),
        (near('10.8.1.100', ''), []),
        (near('10.8.1.100', None), ['a']),
        # Addresses of the other version are in no network.
        (near('10.8.1.100', '/0'), ['a', 'b', 'c']),
        (near('fd00::1', '/64'), ['d']),
        (near(['10.8.1.100'], ['/16']), ['a', 'b']),
    ],
)
def test_hosts_in_the_network_pass(request_, expected):
    assert passing(SimpleCIDRAffinityFilter(), HOSTS, request_) == expected


def test_it_has_no_opinion_without_an_address():
    request = {'scheduler_hints': {'cidr': '/16'}}
    assert not has_opinion(SimpleCIDRAffinityFilter(), HOSTS, request)


@pytest.mark.parametrize(
    'request_',
    [
        near('10.8.1.100', '/33'),
        near('10.8.1'),
        near('10.8.1.0/24'),
        near('nonsense'),
        near(['10.8.1.1', '10.8.1.2']),
        near('10.8.1.1', ['/8', '/16']),
    ],
)
def test_hints_that_make_no_network_fail_the_request(request_):
    with pytest.raises(errors.InvalidRequest):
        passing(SimpleCIDRAffinityFilter(), HOSTS, request_)


@pytest.mark.parametrize('address', [None, 'nonsense'])
def test_a_host_without_a_valid_address_fails_alone(address):
    document = inventory(b={'host_ip': '10.8.1.1'}, a={'host_ip': address})
    request = near('10.8.1.100')
    assert passing(SimpleCIDRAffinityFilter(), document, request) == ['b']
    assert reason(SimpleCIDRAffinityFilter(), document, request) == (
        f'the host cannot be evaluated: host_ip {address} is not an address'
    )


def test_the_reason_names_the_address_and_the_network():
    request = near('10.8.2.100')
    assert reason(SimpleCIDRAffinityFilter(), HOSTS, request) == (
        '10.8.1.1 is not in 10.8.2.0/24'
    )
