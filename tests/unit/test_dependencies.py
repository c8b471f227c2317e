"""What the package imports is declared, and what is declared is used."""

import ast
import pathlib
import re
import sys
import tomllib
from importlib import metadata

ROOT = pathlib.Path(__file__).parents[2]
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


def imported() -> set[str]:
    """Return what the package imports of libraries that it always needs."""
    names: set[str] = set()
    for path in (ROOT / 'scheduler_service').rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split('.')[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split('.')[0])
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
