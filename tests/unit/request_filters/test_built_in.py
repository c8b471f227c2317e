"""Every request filter has a module and a test module of its own."""

from __future__ import annotations

import pathlib

import pytest

from scheduler_service import request_filters
from tests.support.plugins import classes_by_module

MODULES = classes_by_module(request_filters, request_filters.RequestFilter)


def test_a_module_defines_one_filter_and_has_its_name():
    expected = {
        request_filter.name: [type(request_filter).__name__]
        for request_filter in request_filters.BUILT_IN
    }
    assert expected == MODULES
    for name, (class_name,) in MODULES.items():
        assert class_name == name.title().replace('_', '')


@pytest.mark.parametrize('module', sorted(MODULES))
def test_a_filter_has_a_test_module(module):
    folder = pathlib.Path(__file__).parent
    assert (folder / f'test_{module}.py').is_file()
