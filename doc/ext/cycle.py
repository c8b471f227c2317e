"""The directive ``cycle``: a picture of the stages of a request for hosts.

It is drawn from the list of the stages itself.
"""

from __future__ import annotations

from typing import Any

from docutils.parsers import rst
from sphinx.ext.graphviz import graphviz

from scheduler_service.engine.cycle import CYCLE

_FONT = 'fontname="sans-serif"'


def drawn() -> str:
    """Return the picture, as Graphviz reads it.

    Stages of a thread have a color; edges have the state of the jobs.
    """
    threads = [*dict.fromkeys(place.thread for place in CYCLE.values())]
    colors = {name: at for at, name in enumerate(threads, 1)}
    lines = [
        f'rankdir=LR; node [shape=box, style=filled, {_FONT}, fontsize=11];',
        f'edge [{_FONT}, fontsize=9]; arrival [label="", shape=point];',
        *(
            f'{name} [label="{name}\\n({place.thread})", '
            f'colorscheme=pastel19, fillcolor={colors[place.thread]}'
            '];'
            for name, place in CYCLE.items()
        ),
    ]
    before = 'arrival'
    for name, place in CYCLE.items():
        lines.append(f'{before} -> {name} [label="{place.takes.name}"];')
        before = name
    lines += [
        'reply [label="", shape=point];',
        f'{before} -> reply [label="{CYCLE[before].makes.name}"];',
        'answer -> recall [label="undo, last stage first: QUEUED again or '
        'refused", style=dashed, constraint=false, dir=forward];',
    ]
    return f'digraph cycle {{ {" ".join(lines)} }}'


class Cycle(rst.Directive):
    """Draws the stages."""

    def run(self) -> list[Any]:
        """Return the picture."""
        node = graphviz()
        node['code'] = drawn()
        node['options'] = {}
        node['alt'] = 'The stages in their order, with the thread of each'
        return [node]


def setup(app: Any) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive('cycle', Cycle)
    return {'parallel_read_safe': True}
