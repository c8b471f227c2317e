"""What the package imports is declared, and what is declared is used."""

from __future__ import annotations

import ast
import pathlib
import re
import sys
import tomllib
from importlib import metadata

ROOT = pathlib.Path(__file__).parents[2]
# Not imported by us: the build needs it.
NOT_IMPORTED = {'pbr'}
# Imported where an optional extra of the same name is installed.
OPTIONAL = {'kubernetes'}


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
    """Return the distributions of everything that the package imports."""
    names: set[str] = set()
    for path in (ROOT / 'scheduler_service').rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split('.')[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split('.')[0])
    owners = metadata.packages_distributions()
    outside = names - {'scheduler_service'} - sys.stdlib_module_names
    outside -= OPTIONAL
    return {normalized(owners[name][0]) for name in outside}


def test_every_import_is_declared():
    assert imported() - declared() == set()


def test_everything_declared_is_used():
    assert declared() - imported() == NOT_IMPORTED


def test_every_optional_library_is_an_extra():
    document = tomllib.loads((ROOT / 'pyproject.toml').read_text())
    extras = document['project']['optional-dependencies']
    for name in OPTIONAL:
        assert extras[name][0].startswith(name)
