"""The architecture page names what there is."""

import functools
import importlib
import pkgutil
import re

import pytest

import scheduler_service
from scheduler_service.engine.cycle import CYCLE
from tests.support.pages import ARCHITECTURE, call_lists, literals
from tests.support.paths import ROOT

PACKAGE = 'scheduler_service'
TEXT = ARCHITECTURE.read_text()
NAMES = literals(TEXT)
PACKAGES = {module.name for module in pkgutil.iter_modules(
    scheduler_service.__path__
)}  # fmt: skip
FUNCTIONS = sorted({name for name in NAMES if re.match(r'[\w.]+:\w', name)})
MODULES = sorted(
    {
        name
        for name in NAMES
        if re.fullmatch(r'\w+(\.\w+)*', name)
        and name.split('.')[0] in PACKAGES
    }
)


@pytest.mark.parametrize('name', FUNCTIONS)
def test_a_function_that_the_page_names_exists(name):
    module, _, path = name.partition(':')
    found = importlib.import_module(f'{PACKAGE}.{module}')
    assert callable(functools.reduce(getattr, path.split('.'), found))


@pytest.mark.parametrize('name', MODULES)
def test_a_module_that_the_page_names_exists(name):
    importlib.import_module(f'{PACKAGE}.{name}')


def test_every_package_is_on_the_page():
    assert sorted(PACKAGES - {*MODULES}) == []


def test_the_stages_on_the_page_are_those_of_the_cycle():
    rows = re.findall(
        r'(?m)^   \*(\w+)\* \| (\w+) \| (\w+) \| ([\w -]+) \| ', TEXT
    )
    assert rows == [
        (name, place.takes.name, place.makes.name, place.thread)
        for name, place in CYCLE.items()
    ]


def test_the_picture_of_the_cycle_has_each_stage_in_its_order(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / 'doc/ext'))
    picture = importlib.import_module('cycle').drawn()
    names = re.findall(r'-> (\w+) \[label="(\w+)"\]', picture)
    assert names == [
        *((name, place.takes.name) for name, place in CYCLE.items()),
        ('reply', 'DONE'),
    ]


def test_there_is_a_call_list_for_each_way_of_a_request():
    assert list(call_lists(TEXT)) == [
        'The way of one request',
        'A zone',
    ]
