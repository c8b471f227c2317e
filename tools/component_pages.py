"""Write doc/source/components: a page for each built-in component.

``python tools/component_pages.py [FOLDER]``. The rule is the docstring of the
class; what it reads, its options and the example are in doc/components.yaml.
"""

from __future__ import annotations

import inspect
import json
import pathlib
import sys
from typing import Any

import yaml

from scheduler_service import request_filters, weighers
from scheduler_service.filters import hosts, pools

ROOT = pathlib.Path(__file__).resolve().parents[1]
KINDS = {
    'Host filters': [(kind.name, kind) for kind in hosts.BUILT_IN],
    'Weighers': [(kind.name, kind) for kind in weighers.BUILT_IN],
    'Pool filters': [(kind.__name__, kind) for kind in pools.BUILT_IN],
    'Request filters': [
        (one.name, type(one)) for one in request_filters.BUILT_IN
    ],
}


def known() -> dict[str, dict[str, Any]]:
    """Return what doc/components.yaml says, by component."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(
        (ROOT / 'doc' / 'components.yaml').read_text()
    )
    return found


def case(name: str, example: dict[str, Any]) -> dict[str, Any]:
    """Return an example as a conformance case."""
    what = 'weigher' if name.endswith('Weigher') else 'filter'
    return {'id': f'example-{name}', what: name, 'options': {}, **example}


def page(name: str, kind: Any, told: dict[str, Any]) -> str:
    """Return the text of one page."""
    example = json.dumps(told['example'], indent=2).splitlines()
    parts = [
        name,
        '=' * len(name),
        '',
        inspect.cleandoc(kind.__doc__),
        '',
        'Reads: {}.'.format(told['reads'].replace('*', r'\*')),
        '',
        f'Options: {told.get("options", "none")}.',
        '',
        *_flags(kind),
        'Example, run by the tests::',
        '',
        *(f'    {line}' for line in example),
        '',
    ]
    return '\n'.join(parts)


def _flags(kind: Any) -> list[str]:
    """Return what a host filter says of when it runs."""
    if not issubclass(kind, hosts.HostFilter):
        return []
    when = 'once for a request' if kind.once else 'for each instance'
    rebuild = ', and when a rebuild is checked' if kind.rebuild else ''
    return [f'Runs {when}{rebuild}.', '']


def write(folder: pathlib.Path) -> None:
    """Write all pages and their index."""
    folder.mkdir(parents=True, exist_ok=True)
    told = known()
    index = ['==========', 'Components', '==========', '']
    for title, kinds in KINDS.items():
        index += [title, '-' * len(title), '', '.. toctree::', '']
        for name, kind in sorted(kinds):
            (folder / f'{name}.rst').write_text(page(name, kind, told[name]))
            index.append(f'   {name}')
        index.append('')
    (folder / 'index.rst').write_text('\n'.join(index))


if __name__ == '__main__':
    write(
        pathlib.Path(sys.argv[1])
        if len(sys.argv) > 1
        else ROOT / 'doc' / 'source' / 'components'
    )
