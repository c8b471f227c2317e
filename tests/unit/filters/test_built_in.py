"""Every host filter has a module of its own, and tests."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

from scheduler_service.filters import hosts
from tests.support.plugins import classes_by_module

MODULES = classes_by_module(hosts, hosts.HostFilter)


def snake_case(name):
    """Return NUMATopologyFilter as numa_topology_filter."""
    words = re.sub(r'([A-Z]+)([A-Z][a-z])', r'\1_\2', name)
    return re.sub(r'([a-z0-9])([A-Z])', r'\1_\2', words).lower()


def test_a_module_defines_one_filter_and_has_its_name():
    expected = {
        snake_case(kind.__name__): [kind.__name__] for kind in hosts.BUILT_IN
    }
    assert expected == MODULES


@pytest.mark.parametrize('kind', hosts.BUILT_IN)
def test_a_filter_is_tested(kind):
    """In a module of its name, or with others in that of their base."""
    texts = [
        path.read_text()
        for path in pathlib.Path(__file__).parent.glob('test_*.py')
    ]
    assert any(f'{kind.__name__}()' in text for text in texts)


def test_the_function_that_operators_configure_returns_all_filters():
    assert hosts.all_filters() == list(hosts.BUILT_IN)


def test_a_base_module_can_be_imported_first():
    name = 'scheduler_service.filters.capacity'
    subprocess.run([sys.executable, '-c', f'import {name}'], check=True)
