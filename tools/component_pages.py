"""Write doc/source/components: a page for each built-in component.

``python tools/component_pages.py [FOLDER]``. The rule is the docstring of the
class; what it reads, its options, the source of its semantics and an example
are in doc/components.yaml.
"""

from __future__ import annotations

import inspect
import json
import pathlib
import sys
import textwrap
from typing import Any

import yaml

from scheduler_service import request_filters, weighers
from scheduler_service.filters import hosts, pools

LINE = 75  # and four characters before each line of an example
ROOT = pathlib.Path(__file__).resolve().parents[1]
KINDS = {
    'Host filters': [(kind.name, kind) for kind in hosts.BUILT_IN],
    'Weighers': [(kind.name, kind) for kind in weighers.BUILT_IN],
    'Pool filters': [(kind.__name__, kind) for kind in pools.BUILT_IN],
    'Request filters': [
        (request_filter.__name__, request_filter)
        for request_filter in request_filters.BUILT_IN
    ],
}


def known() -> dict[str, dict[str, Any]]:
    """Return the content of doc/components.yaml, by component."""
    components: dict[str, dict[str, Any]] = yaml.safe_load(
        (ROOT / 'doc' / 'components.yaml').read_text()
    )
    return components


def case(name: str, example: dict[str, Any]) -> dict[str, Any]:
    """Return an example as a conformance case."""
    role = 'weigher' if name.endswith('Weigher') else 'filter'
    return {'id': f'example-{name}', role: name, 'options': {}, **example}


def page(name: str, kind: Any, component: dict[str, Any]) -> str:
    """Return the text of one page.

    :param component: what doc/components.yaml has for it
    """
    example = compact_json(component['example']).splitlines()
    parts = [
        name,
        '=' * len(name),
        '',
        inspect.cleandoc(kind.__doc__),
        '',
        _wrapped('Reads', component['reads']),
        '',
        _wrapped('Options', component.get('options', 'none')),
        '',
        *_when_it_runs(kind),
        _wrapped('Semantics', f'those of {component["source"]}'),
        '',
        'Example, which the tests run::',
        '',
        *(f'    {line}' for line in example),
        '',
    ]
    return '\n'.join(parts)


def compact_json(value: Any, indent: int = 0, before: int = 0) -> str:
    """Return JSON in which everything that fits on a line is on one.

    :param indent: of the lines after the first
    :param before: characters before the value on its first line
    """
    text = json.dumps(value)
    # One character more for the comma behind it.
    if before + len(text) < LINE or not isinstance(value, dict | list):
        return text
    inner = indent + 2
    if isinstance(value, dict):
        brackets = '{}'
        entries = []
        for name, entry in value.items():
            key = f'{json.dumps(name)}: '
            entries.append(key + compact_json(entry, inner, inner + len(key)))
    else:
        brackets = '[]'
        entries = [compact_json(entry, inner, inner) for entry in value]
    lines = ',\n'.join(' ' * inner + entry for entry in entries)
    return f'{brackets[0]}\n{lines}\n{" " * indent}{brackets[1]}'


def _wrapped(label: str, text: str) -> str:
    """Return ``label: text.`` in lines of at most 79 characters."""
    # A star would start emphasis.
    text = text.replace('*', r'\*')
    return textwrap.fill(f'{label}: {text}.', 79, break_on_hyphens=False)


def _when_it_runs(kind: Any) -> list[str]:
    """Return the line on when a host filter runs, none for others."""
    if not (isinstance(kind, type) and issubclass(kind, hosts.HostFilter)):
        return []
    when = (
        'once for a request, whatever its number of instances'
        if kind.once
        else 'for each instance of a request'
    )
    rebuild = ', and for a rebuild in place' if kind.rebuild else ''
    return [f'Runs {when}{rebuild}.', '']


def write(folder: pathlib.Path) -> None:
    """Write all pages and their index."""
    folder.mkdir(parents=True, exist_ok=True)
    components = known()
    index = ['==========', 'Components', '==========', '']
    for title, kinds in KINDS.items():
        index += [title, '-' * len(title), '', '.. toctree::', '']
        for name, kind in sorted(kinds):
            text = page(name, kind, components[name])
            (folder / f'{name}.rst').write_text(text)
            index.append(f'   {name}')
        index.append('')
    (folder / 'index.rst').write_text('\n'.join(index))


if __name__ == '__main__':
    write(
        pathlib.Path(sys.argv[1])
        if len(sys.argv) > 1
        else ROOT / 'doc' / 'source' / 'components'
    )
