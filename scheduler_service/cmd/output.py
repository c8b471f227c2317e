"""Print lists and documents: tables for people, JSON or YAML for programs.

Writes to standard output; progress bars to standard error.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from scheduler_service.model import documents

_WIDTH = 200


def console(stderr: bool = False) -> Any:
    """Return a console; wide lines if its stream is not a terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDTH
    return Console(file=stream, width=width, highlight=False)


def listing(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], form: str
) -> None:
    """Print rows as a table, or as a JSON or YAML document."""
    if form == 'table':
        table(rows, columns)
    else:
        document([dict(row) for row in rows], form)


def table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    title: str | None = None,
) -> None:
    """Print a table."""
    from rich.table import Table

    grid = Table(title=title, title_justify='left', header_style='bold')
    for name in columns:
        grid.add_column(name.replace('_', ' '), overflow='fold')
    for row in rows:
        grid.add_row(*(cell(row.get(name)) for name in columns))
    console().print(grid)


def cell(value: Any) -> str:
    """Return a value as text for a cell of a table."""
    if value is None:
        return ''
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if isinstance(value, float):
        return f'{value:.3f}'.rstrip('0').rstrip('.')
    if isinstance(value, Mapping):
        return ', '.join(f'{key}={cell(v)}' for key, v in value.items())
    if isinstance(value, list | tuple):
        return ', '.join(cell(item) for item in value)
    # Square brackets are markup to rich.
    return str(value).replace('[', r'\[')


def document(value: Any, form: str) -> None:
    """Print a document as JSON or YAML."""
    kind = 'yaml' if form == 'yaml' else 'json'
    sys.stdout.write(documents.dump(value, kind).decode().rstrip('\n') + '\n')


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Give a function that shows progress by (what, done, total).

    It does nothing unless standard error is a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.progress import Progress

    with Progress(console=console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        yield show
