"""TableCopier: copies stay as they were, and share what they may share."""

import pytest

from scheduler_service.columns import HostTable
from scheduler_service.columns.table_copies import TableCopier, node_names
from scheduler_service.testing import table as build_table


@pytest.fixture
def table() -> HostTable:
    return build_table(
        {
            'hosts': [
                {
                    'host': host,
                    'hypervisor_hostname': f'Node-{host}',
                    'vcpus': 8,
                    'memory_mb': 1024,
                }
                for host in ('a', 'b')
            ],
            'aggregates': [{'id': 1, 'hosts': ['a']}],
        }
    )


def test_a_copy_names_its_rows_as_extenders_know_them(table):
    copy = TableCopier().copy(table)
    assert copy.names == ['node-a', 'node-b']
    assert copy.rows == {'node-a': 0, 'node-b': 1}


def test_a_copy_stays_while_the_table_is_written(table):
    copy = TableCopier().copy(table)
    table.resources['VCPU'].used[0] += 2
    table.numbers['num_instances'][0] += 1
    assert copy.table.resources['VCPU'].used.tolist() == [0, 0]
    assert copy.table.numbers['num_instances'].tolist() == [0, 0]


def test_node_names_are_legal_and_differ_when_hosts_have_odd_names():
    hosts = build_table({'hosts': [
        {'host': 'A_b', 'hypervisor_hostname': name}
        for name in ('Node_1', 'node-1', '-x-', '..')
    ]})  # fmt: skip
    names = node_names(hosts)
    assert names[0] == 'node-1'
    assert names[1].startswith('node-1-')
    assert names[2:] == ['x', 'node']
