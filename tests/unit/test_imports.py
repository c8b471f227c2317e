"""What the import fences of ``pyproject.toml`` cannot express."""

import ast
from collections.abc import Iterator

import grimp

from tests.support.paths import ROOT

FILES = sorted((ROOT / 'scheduler_service').rglob('*.py'))
# Every driver has to be a subclass of what this has.
BASE = 'oslo_messaging._drivers.base'


def imported(text: str) -> Iterator[str]:
    """Yield the dotted names of oslo.messaging that a module imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f'{node.module}.{each.name}' for each in node.names)


def private(text: str) -> list[str]:
    """Return private names of oslo.messaging that a module imports."""
    return [
        name
        for name in imported(text)
        if name.startswith('oslo_messaging.') and '._' in name
    ]


def test_nothing_private_of_oslo_messaging_is_imported():
    found = {
        str(path.relative_to(ROOT)): names
        for path in FILES
        if (names := private(path.read_text()))
    }
    assert found == {'scheduler_service/bus/inproc.py': [BASE]}


def test_no_module_imports_a_package_that_imports_it():
    # The fence against circles compares modules of one package with each
    # other, not with the package that they are in.
    graph = grimp.build_graph('scheduler_service')
    circles = [
        (module, imported)
        for module in sorted(graph.modules)
        for imported in graph.find_modules_directly_imported_by(module)
        if module.startswith(f'{imported}.')
        and graph.chain_exists(importer=imported, imported=module)
    ]
    assert circles == []
