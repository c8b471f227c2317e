"""IoOpsFilter limits the I/O operations of a host."""

from __future__ import annotations

from scheduler_service.filters.hosts.io_ops_filter import IoOpsFilter
from tests.support.plugins import inventory, passing, reason

HOSTS = inventory(a={'num_io_ops': 8}, b={'num_io_ops': 7}, c={})


def test_hosts_below_the_limit_pass():
    assert passing(IoOpsFilter(), HOSTS, max_io_ops_per_host=8) == ['b', 'c']


def test_a_limit_of_zero_blocks_every_host():
    assert passing(IoOpsFilter(), HOSTS, max_io_ops_per_host=0) == []


def test_the_reason_gives_the_count_and_the_limit():
    assert reason(IoOpsFilter(), HOSTS, max_io_ops_per_host=8) == (
        'the host has 8 I/O operations, and must have fewer than 8'
    )
