"""The lines of WARNING and above that the package may log."""

from __future__ import annotations

import ast

from tests.support.paths import ROOT

PACKAGE = ROOT / 'scheduler_service'
_LEVELS = {'warning', 'error', 'exception', 'critical'}


def templates() -> dict[str, str]:
    """Return the text of each line, as it is in the code -> its file.

    A line that is only ``%s`` is left out: it is that of ``Health``, of which
    :func:`degradations` has the texts.
    """
    found = {}
    for path in sorted(PACKAGE.rglob('*.py')):
        for call in _calls(ast.parse(path.read_text())):
            name = getattr(call.func, 'attr', '')
            owner = getattr(getattr(call.func, 'value', None), 'id', '')
            if owner != 'LOG' or name not in _LEVELS:
                continue
            text = ast.literal_eval(call.args[0])
            found[text] = str(path.relative_to(ROOT))
    return found


def degradations() -> dict[str, str]:
    """Return the cause of each degradation -> the file that names it."""
    found = {}
    for path in sorted(PACKAGE.rglob('*.py')):
        module = ast.parse(path.read_text())
        constants = _constants(module)
        for call in _calls(module):
            if getattr(call.func, 'attr', '') not in ('degrade', '_degrade'):
                continue
            first = call.args[0]
            if isinstance(first, ast.Constant):
                found[str(first.value)] = path.name
            elif isinstance(first, ast.Name) and first.id in constants:
                found[constants[first.id]] = path.name
    return found


def _calls(module: ast.Module) -> list[ast.Call]:
    return [node for node in ast.walk(module) if isinstance(node, ast.Call)]


def _constants(module: ast.Module) -> dict[str, str]:
    """Return the strings that a module gives names to."""
    return {
        target.id: node.value.value
        for node in module.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
