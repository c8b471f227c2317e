"""What pages of the documentation name: functions, commands, options."""

from __future__ import annotations

import pathlib
import re

from tests.support.paths import ROOT

ARCHITECTURE = ROOT / 'doc/source/contributor/architecture.rst'
_LITERAL = re.compile(r'``([^`]+)``')
_HEADING = re.compile(r'(?m)^(\S.*)\n[=~-]{3,}$')
_ROW = re.compile(r'(?m)^   ``(\S+)`` \| (\S+) \| ')


def pages() -> list[pathlib.Path]:
    """Return the pages that are written by hand."""
    written = [
        path
        for path in sorted((ROOT / 'doc/source').rglob('*.rst'))
        if path.parent.name != 'components'
    ]
    return [*written, ROOT / 'README.rst', ROOT / 'CONTRIBUTING.rst']


def literals(text: str) -> list[str]:
    """Return what stands between double backquotes, each on one line."""
    return [' '.join(found.split()) for found in _LITERAL.findall(text)]


def call_lists(text: str) -> dict[str, list[tuple[str, str]]]:
    """Return the call lists of a page: heading -> (function, thread)."""
    starts = [found.start() for found in _HEADING.finditer(text)]
    lists = {}
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        section = text[start:end]
        rows = _ROW.findall(section)
        if rows:
            lists[section.partition('\n')[0]] = rows
    return lists
