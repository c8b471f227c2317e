"""SameHostFilter passes the hosts of named instances."""

from __future__ import annotations

import pytest

from scheduler_service.filters.hosts.same_host_filter import SameHostFilter
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
    return {'scheduler_hints': {'same_host': value}}


@pytest.mark.parametrize(
    ('value', 'expected'),
    [
        (uuid(1), ['a']),
        ([uuid(1)], ['a']),
        # Any of the named instances suffices.
        ([uuid(1), uuid(2)], ['a', 'b']),
        ([uuid(1), uuid(9)], ['a']),
        # An instance that is not known is on no host.
        ([uuid(9)], []),
    ],
)
def test_hosts_with_a_named_instance_pass(value, expected):
    assert passing(SameHostFilter(), HOSTS, hint(value)) == expected


@pytest.mark.parametrize('value', [None, [], '', ['']])
def test_it_has_no_opinion_without_the_hint(value):
    assert not has_opinion(SameHostFilter(), HOSTS, hint(value))


def test_the_reason_names_the_hint():
    assert reason(SameHostFilter(), HOSTS, hint(uuid(2))) == (
        'no instance named by the hint same_host is on this host'
    )
