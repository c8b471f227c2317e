"""What the package imports: declared, used, and nothing private.

The fences between its own modules are in ``pyproject.toml``.
"""

import ast
import functools
import re
import sys
import tomllib
from importlib import metadata

import grimp

from tests.support.paths import ROOT

# Every driver has to be a subclass of what this has.
BASE = 'oslo_messaging._drivers.base'
# Not imported by us: the build needs it.
NOT_IMPORTED = {'pbr'}
# Imported where an optional extra is installed: library -> extra.
OPTIONAL = {'kubernetes': 'kubernetes', 'opentelemetry': 'tracing'}


def normalized(name: str) -> str:
    """Return the name of a distribution in its canonical form."""
    return re.sub(r'[-_.]+', '-', name).lower()


def declared() -> set[str]:
    """Return the distributions that pyproject.toml requires."""
    document = tomllib.loads((ROOT / 'pyproject.toml').read_text())
    return {
        normalized(re.match(r'[\w.-]+', line)[0])  # type: ignore[index]
        for line in document['project']['dependencies']
    }


@functools.cache
def imports() -> dict[str, set[str]]:
    """Return module -> dotted names that it imports, once read for all."""
    found = {}
    for path in sorted((ROOT / 'scheduler_service').rglob('*.py')):
        names = found[str(path.relative_to(ROOT))] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {f'{node.module}.{each.name}' for each in node.names}
    return found


def imported() -> set[str]:
    """Return what the package imports of libraries that it always needs."""
    names = {name.split('.')[0] for one in imports().values() for name in one}
    outside = names - {'scheduler_service'} - sys.stdlib_module_names
    return outside - OPTIONAL.keys()


def test_what_is_declared_is_what_is_imported():
    owners = {
        path.parts[0].removesuffix('.py'): name
        for name in declared()
        for path in metadata.files(name)
    }
    assert imported() - owners.keys() == set()
    assert declared() - {owners[one] for one in imported()} == NOT_IMPORTED


def test_every_optional_library_is_an_extra():
    document = tomllib.loads((ROOT / 'pyproject.toml').read_text())
    extras = document['project']['optional-dependencies']
    for library, name in OPTIONAL.items():
        assert extras[name][0].startswith(library)
        assert set(extras[name]) <= set(extras['test'])


def test_nothing_private_of_oslo_messaging_is_imported():
    found = {
        (module, name)
        for module, names in imports().items()
        for name in names
        if name.startswith('oslo_messaging.') and '._' in name
    }
    assert found == {('scheduler_service/bus/inproc.py', BASE)}


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
