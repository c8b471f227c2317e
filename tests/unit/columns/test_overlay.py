"""Placements that are assumed, taken back or kept."""

from __future__ import annotations

import pytest

from scheduler_service.columns import Overlay
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.testing import table


def test_placements_are_taken_back_unless_they_were_committed():
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


def test_placements_are_taken_back_when_a_transaction_fails():
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
