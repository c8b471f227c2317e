"""The list of what the driver needs of oslo.messaging is complete."""

from __future__ import annotations

import ast

import pytest

from scheduler_service.rpc import driver_range
from tests.support.paths import ROOT

RPC = ROOT / 'scheduler_service' / 'rpc'
FILES = ('rabbit.py', 'queues.py')
LISTED = {
    member
    for words in driver_range.NEEDED.values()
    for members in words.values()
    for member in members
}
# Of a message of kombu, of the driver's own thread-local storage, and of a
# transport.
OWN = {'_raw_message', '_local', '_driver'}


def trees():
    """Return the parsed files, by name."""
    return {name: ast.parse((RPC / name).read_text()) for name in FILES}


def modules_of(tree):
    """Return the private modules that a file imports: its name -> module."""
    return {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and node.module == 'oslo_messaging._drivers'
        for alias in node.names
    }


def is_set_on_self(node):
    """Whether an attribute is assigned to the object that has the method."""
    on_self = isinstance(node.value, ast.Name) and node.value.id == 'self'
    return on_self and isinstance(node.ctx, ast.Store)


@pytest.mark.parametrize('name', FILES)
def test_what_is_read_of_a_private_module_is_listed(name):
    tree = trees()[name]
    modules = modules_of(tree)
    read = {
        (modules[node.value.id], node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in modules
    }
    listed = {
        (module, word)
        for module, words in driver_range.NEEDED.items()
        for word in words
    }
    assert read - listed == set()


def test_private_attributes_are_listed():
    read = set()
    own = set(OWN)
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                own.add(node.name)
            if not isinstance(node, ast.Attribute):
                continue
            is_private = node.attr[0] == '_' and node.attr[1] != '_'
            if is_private and is_set_on_self(node):
                own.add(node.attr)
            elif is_private:
                read.add(node.attr)
    assert read - own - LISTED == set()


def test_the_installed_release_has_all_of_it():
    assert driver_range.missing() == []


@pytest.mark.parametrize(
    ('release', 'is_tested'),
    [('18.1.0', False), (driver_range.LOWEST, True), ('18.3.0', True),
     (driver_range.HIGHEST, True), ('18.4', False), ('19.0.0rc1', False)],
)  # fmt: skip
def test_the_range_has_two_ends(release, is_tested):
    assert driver_range.is_tested(release) == is_tested


def test_the_lowest_is_the_one_that_is_required():
    text = (ROOT / 'pyproject.toml').read_text()
    major_minor = driver_range.LOWEST.rpartition('.')[0]
    assert f'"oslo.messaging>={major_minor}' in text


def test_the_pages_name_the_range():
    page = (ROOT / 'doc/source/admin/operating.rst').read_text()
    tested = f'{driver_range.LOWEST} to {driver_range.HIGHEST}'
    assert tested in ' '.join(page.split())
