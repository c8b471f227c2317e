"""Tables, deltas and the overlay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.columns import DictionaryColumn, InstanceIndex, Overlay
from scheduler_service.columns.build import with_hosts
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.model import Host
from scheduler_service.settings import Settings
from scheduler_service.testing import table

WORDS = st.sampled_from(['a', 'b', 'c', 'd', None])


@given(st.lists(WORDS), st.lists(WORDS))
def test_coded_concat_is_the_concatenation(one, two):
    joined = DictionaryColumn.of(one).concat(DictionaryColumn.of(two))
    assert [joined.at(row) for row in range(len(joined.codes))] == one + two
    assert joined.mask_where(lambda value: value == 'a').tolist() == [
        value == 'a' for value in one + two
    ]


def test_where_still_works_for_plug_ins_of_others():
    column = DictionaryColumn.of(['a', 'b', 'a'])
    assert column.where(lambda value: value == 'a').tolist() == [
        True, False, True,
    ]  # fmt: skip


@given(st.lists(WORDS, min_size=1))
def test_coded_predicate_runs_once_for_each_value(items):
    seen = []
    DictionaryColumn.of(items).mask_where(
        lambda value: bool(seen.append(value))
    )
    assert sorted(map(str, seen)) == sorted({str(item) for item in items})


def test_rows_of_host_are_all_its_nodes():
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


def test_ratio_of_zero_or_none_is_the_configured_one():
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


def test_free_disk_is_capped_by_what_is_measured():
    hosts = table(
        {
            'hosts': [
                {'host': 'a', 'local_gb': 10, 'disk_available_least': 3},
                {'host': 'b', 'local_gb': 10, 'local_gb_used': 12},
            ]
        }
    )
    assert hosts.free_disk_mb().tolist() == [3072.0, -2048.0]


def test_with_hosts_adds_replaces_and_removes():
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


def test_overlay_takes_and_gives_back_all_that_is_not_published():
    base = table({'hosts': [{'host': 'a', 'vcpus': 4, 'local_gb': 9}]})
    overlay = Overlay(base)
    overlay.assume(0, {'VCPU': 2, 'DISK_GB': 1}, PlacedInstance('u', 'a', 'a'))
    assert overlay.table.resources['VCPU'].used.tolist() == [2]
    assert overlay.table.number('num_io_ops').tolist() == [0]
    assert overlay.table.instances.get('u') is not None
    overlay.forget()
    assert base.resources['VCPU'].used.tolist() == [0]
    assert base.instances.get('u') is None
    overlay.assume(0, {'VCPU': 2, 'DISK_GB': 1}, PlacedInstance('u', 'a', 'a'))
    overlay.commit()
    overlay.forget()
    assert base.number('num_instances').tolist() == [1]
    assert base.resources['VCPU'].used.tolist() == [2]


def test_overlay_gives_back_what_a_failed_attempt_took():
    overlay = Overlay(table({'hosts': [{'host': 'a', 'vcpus': 4}]}))
    overlay.assume(0, {'VCPU': 1}, PlacedInstance('kept', 'a', 'a'))

    def fail():
        with overlay.transaction():
            overlay.assume(0, {'VCPU': 2}, PlacedInstance('gone', 'a', 'a'))
            assert overlay.table.number('num_io_ops').tolist() == [1]
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert overlay.table.number('num_io_ops').tolist() == [0]
    assert overlay.table.resources['VCPU'].used.tolist() == [1]
    assert overlay.table.number('num_instances').tolist() == [1]
    assert overlay.table.instances.get('gone') is None
    assert overlay.table.instances.get('kept') is not None


@given(
    st.lists(
        st.tuples(
            st.sampled_from('uvwxyz'), st.sampled_from(['h1', 'h2', None])
        )
    )
)
def test_instance_index_is_a_dict_that_shares(moves):
    index, plain = (
        InstanceIndex.of([PlacedInstance('u', 'h1', 'h1')]),
        {'u': 'h1'},
    )
    for uuid, host in moves:
        if host is None:
            index = index.changed([], [uuid])
            plain.pop(uuid, None)
        else:
            index = index.changed([PlacedInstance(uuid, host, host)])
            plain[uuid] = host
    assert {one.uuid: one.host for one in index} == plain
    assert len(index) == len(plain)
    for host in ('h1', 'h2'):
        assert {one.uuid for one in index.on_host(host)} == {
            uuid for uuid, there in plain.items() if there == host
        }


def test_masks_are_dropped_when_there_are_too_many():
    topology = table({'hosts': [{'host': 'a'}, {'host': 'b'}]}).topology
    made = []

    def mask(number):
        def work():
            made.append(number)
            return np.array([True, False])

        return topology.mask(number, work)

    for number in range(20_000):
        mask(number)
    mask(19_999)
    assert made == list(range(20_000))
    mask(0)
    assert made[-1] == 0


def test_a_mask_that_passes_every_host_is_none():
    topology = table({'hosts': [{'host': 'a'}]}).topology
    assert topology.mask('key', lambda: np.array([True])) is None
