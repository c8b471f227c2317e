"""The directive ``programs``: what the man pages say, as a page.

It is made of the programs' own parsers, by ``tools/manual.py``.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

from docutils import nodes
from docutils.parsers import rst

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / 'tools'))
import manual


class Programs(rst.Directive):
    """Writes a section for each program, with its commands."""

    def run(self) -> list[Any]:
        """Return the sections."""
        return [self._section(program) for program in manual.programs()]

    def _section(self, program: manual.Program) -> Any:
        section = _titled(program.name)
        section += nodes.paragraph(text=_sentence(program.summary))
        for text in program.text:
            section += nodes.paragraph(text=text)
        section += _terms(program.arguments)
        for command in program.commands:
            inner = _titled(f'{program.name} {command.words}')
            inner += nodes.paragraph(text=_sentence(command.text))
            usage = f'{program.name} {command.usage}'
            inner += nodes.literal_block(usage, usage, language='text')
            if command.arguments:
                inner += _terms(command.arguments)
            section += inner
        section += nodes.paragraph(text='The exit status is')
        section += _terms(program.statuses)
        return section


def _titled(title: str) -> Any:
    section = nodes.section(ids=[nodes.make_id(title)])
    section += nodes.title(text=title)
    return section


def _sentence(text: str) -> str:
    return f'{text[:1].upper()}{text[1:]}.'


def _terms(found: Any) -> Any:
    """Return a list of terms, each with its text."""
    terms = nodes.definition_list()
    for term, text in found:
        item = nodes.definition_list_item()
        item += nodes.term('', '', nodes.literal(text=term))
        item += nodes.definition('', nodes.paragraph(text=text))
        terms += item
    return terms


def setup(app: Any) -> dict[str, Any]:
    """Add the directive."""
    app.add_directive('programs', Programs)
    return {'version': '1', 'parallel_read_safe': True}
