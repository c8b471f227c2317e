"""Placements that are assumed, taken back or kept."""

import ast

import pytest

from scheduler_service.columns import Overlay
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.testing import table
from tests.support.paths import ROOT

# What a table consists of, and what writes to it.
COLUMNS = {'used', 'numbers', 'groups', 'resources', 'builds'}
WRITERS = {
    ('instances', 'put'),
    ('load', 'refresh'),
    ('changes', 'add'),
    ('groups', 'pop'),
    ('groups', 'update'),
}


def writes(node: ast.AST) -> bool:
    """Whether a node of a program writes to a host table."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner = node.func.value
        name = owner.attr if isinstance(owner, ast.Attribute) else ''
        return (name, node.func.attr) in WRITERS
    targets = getattr(node, 'targets', [getattr(node, 'target', None)])
    return any(map(is_column, targets))


def is_column(target: ast.AST | None) -> bool:
    """Whether a target is an item of a table's column, or its builds."""
    if not isinstance(target, ast.Subscript):
        return isinstance(target, ast.Attribute) and target.attr == 'builds'
    while isinstance(target, ast.Subscript):
        target = target.value
    return (
        isinstance(target, ast.Attribute)
        and target.attr in COLUMNS
        # An object's own mapping.
        and not (
            isinstance(target.value, ast.Name) and target.value.id == 'self'
        )
    )


def test_nothing_else_writes_to_a_host_table():
    found = {}
    for path in (ROOT / 'scheduler_service').rglob('*.py'):
        lines = [
            node.lineno
            for node in ast.walk(ast.parse(path.read_text()))
            if writes(node)
        ]
        if lines:
            found['/'.join(path.parts[-2:])] = lines
    # A table that is built is nobody's yet.
    assert found.keys() == {'columns/changes.py', 'columns/build.py'}, found


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


def test_those_that_were_assumed_last_are_taken_back():
    """What was assumed before them stays, with the builds in its turn."""
    hosts = [{'host': name, 'vcpus': 8} for name in 'ab']
    overlay = Overlay(table({'hosts': hosts}))

    def placed(*names: str) -> list[PlacedInstance]:
        return [PlacedInstance(name, 'a', 'a') for name in names]

    def figures() -> tuple[list[int], ...]:
        found = overlay.table
        return (
            found.resources['VCPU'].used.tolist(),
            found.number('num_instances').tolist(),
            found.number('num_io_ops').tolist(),
        )

    with overlay.transaction():
        overlay.assume_many([0, 1, 0], {'VCPU': 1}, placed('u', 'v', 'w'))
        overlay.assume(1, {'VCPU': 3}, *placed('x'))
        overlay.assume_many([0], {'VCPU': 2}, placed('y'))
        assert figures() == ([4, 4], [3, 2], [3, 2])
        overlay.forget_last(2)
        assert figures() == ([2, 1], [2, 1], [2, 1])
    assert figures() == ([2, 1], [2, 1], [0, 0])
    assert overlay.table.instances.get('x') is None
    assert overlay.table.instances.get('w') is not None
    overlay.commit(2)
    overlay.forget()
    assert figures() == ([1, 1], [1, 1], [0, 0])
    assert overlay.table.instances.get('w') is None
