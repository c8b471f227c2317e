"""Every weigher has a module of its own, and tests."""

from __future__ import annotations

import pathlib
import re

import pytest

from scheduler_service import weighers
from tests.support.plugins import classes_by_module

MODULES = classes_by_module(weighers, weighers.Weigher)


def snake_case(name):
    """Return RAMWeigher as ram_weigher."""
    words = re.sub(r'([A-Z]+)([A-Z][a-z])', r'\1_\2', name)
    return re.sub(r'([a-z0-9])([A-Z])', r'\1_\2', words).lower()


def test_a_module_defines_one_weigher_and_has_its_name():
    names = [kind.__name__ for kind in weighers.BUILT_IN]
    assert {snake_case(name): [name] for name in names} == MODULES


@pytest.mark.parametrize('kind', weighers.BUILT_IN)
def test_a_weigher_is_tested(kind):
    """In a module of its name, or with others of one form."""
    texts = [
        path.read_text()
        for path in pathlib.Path(__file__).parent.glob('test_*.py')
    ]
    assert any(f'{kind.__name__}()' in text for text in texts)


def test_the_function_that_operators_configure_returns_all_weighers():
    assert weighers.all_weighers() == list(weighers.BUILT_IN)
