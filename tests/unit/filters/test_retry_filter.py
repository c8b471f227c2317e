"""RetryFilter rejects nodes that were already tried."""

import pytest

from scheduler_service.filters.hosts.retry_filter import RetryFilter
from tests.support.plugins import has_opinion, inventory, passing, reason

HOSTS = inventory(a={}, b={}, c={})


def retry(*pairs):
    return {'retry': {'num_attempts': 2, 'hosts': [list(p) for p in pairs]}}


@pytest.mark.parametrize(
    ('pairs', 'expected'),
    [
        ([('a', 'a')], ['b', 'c']),
        ([('a', 'a'), ('c', 'c')], ['b']),
        # The pair counts: another node of the host was not tried.
        ([('a', 'other')], ['a', 'b', 'c']),
        ([('A', 'A')], ['a', 'b', 'c']),
        ([('unknown', 'unknown')], ['a', 'b', 'c']),
    ],
)
def test_the_listed_pairs_fail(pairs, expected):
    assert passing(RetryFilter(), HOSTS, retry(*pairs)) == expected


def test_other_nodes_of_a_host_pass():
    document = {
        'hosts': [
            {'host': 'a', 'hypervisor_hostname': 'a-1'},
            {'host': 'a', 'hypervisor_hostname': 'a-2'},
        ]
    }
    request = retry(('a', 'a-1'), ('a', 'a-2'))
    assert passing(RetryFilter(), document, request) == []
    assert passing(RetryFilter(), document, retry(('a', 'a-1'))) == ['a']


@pytest.mark.parametrize('request_', [{}, {'retry': None}, retry()])
def test_it_has_no_opinion_on_a_first_attempt(request_):
    assert not has_opinion(RetryFilter(), HOSTS, request_)


def test_the_reason_says_that_the_host_was_tried():
    assert reason(RetryFilter(), HOSTS, retry(('a', 'a'))) == (
        'the host was already tried for this request'
    )
