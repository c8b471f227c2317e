"""Every built-in filter and weigher is listed, and has tests."""

import pathlib
import re
import subprocess
import sys

import pytest

from scheduler_service import request_filters, weighers
from scheduler_service.filters import hosts
from tests.support.plugins import classes_by_module

FOLDER = pathlib.Path(__file__).parent


@pytest.mark.parametrize(
    ('package', 'base'),
    [(hosts, hosts.HostFilter), (weighers, weighers.Weigher)],
)
def test_all_classes_of_the_modules_are_built_in(package, base):
    by_module = classes_by_module(package, base)
    names = [name for names in by_module.values() for name in names]
    assert sorted(names) == sorted(kind.__name__ for kind in package.BUILT_IN)


@pytest.mark.parametrize(
    ('folder', 'kind'),
    [
        *(('filters', kind) for kind in hosts.BUILT_IN),
        *(('weighers', kind) for kind in weighers.BUILT_IN),
    ],
)
def test_a_class_is_tested(folder, kind):
    """In a module of its name, or with others of one form."""
    paths = (FOLDER / folder).glob('test_*.py')
    used = re.compile(rf"\b{kind.__name__}(\(\)|')")
    assert any(used.search(path.read_text()) for path in paths)


@pytest.mark.parametrize('each', request_filters.BUILT_IN)
def test_a_request_filter_is_tested(each):
    text = (FOLDER / 'request_filters' / 'test_each_filter.py').read_text()
    assert f'scope_of({each.__name__}' in ''.join(text.split())


def test_the_functions_that_operators_configure_return_all():
    assert hosts.all_filters() == list(hosts.BUILT_IN)
    assert weighers.all_weighers() == list(weighers.BUILT_IN)


def test_a_base_module_can_be_imported_first():
    name = 'scheduler_service.filters.capacity'
    subprocess.run([sys.executable, '-c', f'import {name}'], check=True)
