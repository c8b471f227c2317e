"""Hosts as nodes."""

from __future__ import annotations

from scheduler_service.extender import objects


def test_node_names_are_legal_and_differ_when_hosts_have_odd_names():
    from scheduler_service.testing.builders import table

    hosts = table({'hosts': [
        {'host': 'A_b', 'hypervisor_hostname': name}
        for name in ('Node_1', 'node-1', '-x-', '..')
    ]})  # fmt: skip
    names = objects.node_names(hosts)
    assert names[0] == 'node-1'
    assert names[1].startswith('node-1-')
    assert names[2:] == ['x', 'node']
