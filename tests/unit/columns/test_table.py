"""Hosts as columns."""

from scheduler_service.columns.build import with_aggregates, with_hosts
from scheduler_service.filters.hosts.aggregate_filter import unknown_zone
from scheduler_service.model import Host, Request, Resource
from scheduler_service.settings import Settings
from scheduler_service.testing import table


def test_rows_are_those_of_all_nodes_when_a_host_has_several():
    hosts = table(
        {
            'hosts': [
                {'host': 'b', 'hypervisor_hostname': 'b1'},
                {'host': 'a'},
                {'host': 'b', 'hypervisor_hostname': 'b2'},
            ]
        }
    )
    assert sorted(hosts.rows_of_host('b')) == [0, 2]
    assert hosts.rows_of_host('B').tolist() == []
    assert hosts.row_of_node('b', 'b2') == 2
    assert hosts.row_of_node('b', 'b3') is None


def test_ratio_is_the_configured_one_when_the_host_has_none():
    hosts = table(
        {
            'hosts': [
                {'host': 'a', 'vcpus': 2},
                {'host': 'b', 'vcpus': 2, 'cpu_allocation_ratio': 0.0},
                {'host': 'c', 'vcpus': 2, 'cpu_allocation_ratio': 3.0},
            ]
        }
    )
    settings = Settings(cpu_allocation_ratio=5.0)
    assert hosts.capacity('VCPU', settings).tolist() == [10.0, 10.0, 6.0]


def test_a_class_has_no_capacity_when_its_ratio_is_0_and_none_is_configured():
    offers = [{'total': 4, 'reserved': 1}, {'total': 4, 'allocation_ratio': 0}]
    hosts = table(
        {
            'hosts': [
                {'host': f'h{n}', 'resources': {'CUSTOM_A': offered}}
                for n, offered in enumerate(offers)
            ]
        }
    )
    assert hosts.capacity('CUSTOM_A', Settings()).tolist() == [3.0, 0.0]


def test_free_disk_is_the_measured_one_when_that_is_less():
    hosts = table(
        {
            'hosts': [
                {'host': 'a', 'local_gb': 10, 'disk_available_least': 3},
                {'host': 'b', 'local_gb': 10, 'local_gb_used': 12},
            ]
        }
    )
    assert hosts.free_disk_mb().tolist() == [3072.0, -2048.0]


def test_hosts_are_added_replaced_and_removed_when_rebuilt():
    before = table(
        {'hosts': [{'host': 'a', 'vcpus': 1}, {'host': 'b', 'vcpus': 2}]}
    )
    after = with_hosts(
        before, [(1, Host(host='b', vcpus=9)), (7, Host(host='c'))], [0]
    )
    assert after.ids.tolist() == [1, 7]
    assert after.resources['VCPU'].total.tolist() == [9, 0]
    assert [after.host_at(row) for row in range(2)] == ['b', 'c']
    assert before.resources['VCPU'].total.tolist() == [1, 2]


def test_the_zone_of_a_host_is_its_own_after_a_refusal_named_all_zones():
    hosts = table(
        {
            'hosts': [{'host': name} for name in 'abc'],
            'aggregates': [
                {'id': 1, 'hosts': ['b']},
                {'id': 2, 'hosts': ['a'],
                 'metadata': {'availability_zone': 'z'}},
            ],
        }
    )  # fmt: skip
    assert unknown_zone(hosts, Request(availability_zone='x'), Settings())
    zones = [hosts.zone_at(row, 'nova') for row in range(3)]
    assert zones == ['z', 'nova', 'nova']


def offering(number, *names, **classes):
    return {
        'id': number,
        'hosts': [*names],
        'resources': {
            f'CUSTOM_{name}': {'total': total}
            for name, total in classes.items()
        },
    }


def test_a_host_has_what_its_first_aggregate_offers_and_it_does_not():
    hosts = table(
        {
            'hosts': [
                {'host': 'a'},
                {'host': 'b', 'resources': {'CUSTOM_A': {'total': 0}}},
                {'host': 'c'},
                {'host': 'd'},
            ],
            'aggregates': [
                offering(4, 'a', 'b', 'c', A=4, B=1),
                offering(2, 'c', A=9),
            ],
        }
    )
    assert hosts.resources['CUSTOM_A'].total.tolist() == [4, 0, 9, -1]
    assert hosts.shared['CUSTOM_A'].tolist() == [-5, 0, -3, 0]
    assert hosts.providers(2, ['CUSTOM_A', 'CUSTOM_B', 'VCPU']) == {
        'CUSTOM_A': -3,
        'CUSTOM_B': -5,
    }
    # A host that comes has it, too; one that changed may offer its own.
    own = Host(host='a', resources={'CUSTOM_A': Resource(total=7)})
    changed = with_hosts(hosts, [(9, Host(host='d')), (0, own)], [3])
    assert changed.resources['CUSTOM_A'].total.tolist() == [7, 0, 9, -1]
    gone = with_aggregates(changed, [])
    assert gone.resources['CUSTOM_A'].total.tolist() == [7, 0, -1, -1]
    assert (gone.shared, gone.providers(2, ['CUSTOM_A'])) == ({}, {})
