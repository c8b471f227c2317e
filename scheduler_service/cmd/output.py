"""Print lists and documents: a table for people, JSON or YAML for programs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from scheduler_service.model import documents

_WIDTH = 200


def console(stderr: bool = False) -> Any:
    """Return where people read; wide where nobody does."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDTH
    return Console(file=stream, width=width, highlight=False)


def listing(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], form: str
) -> None:
    """Print a list of things."""
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

    drawn = Table(title=title, title_justify='left', header_style='bold')
    for name in columns:
        drawn.add_column(name.replace('_', ' '), overflow='fold')
    for row in rows:
        drawn.add_row(*(cell(row.get(name)) for name in columns))
    console().print(drawn)


def cell(value: Any) -> str:
    """Return a value as it stands in a table."""
    if value is None:
        return ''
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if isinstance(value, float):
        return f'{value:.3f}'.rstrip('0').rstrip('.')
    if isinstance(value, Mapping):
        return ', '.join(f'{key}={cell(v)}' for key, v in value.items())
    if isinstance(value, list | tuple):
        return ', '.join(cell(one) for one in value)
    # Square brackets are markup to the library that draws.
    return str(value).replace('[', r'\[')


def document(value: Any, form: str) -> None:
    """Print a document as JSON or YAML."""
    kind = 'yaml' if form == 'yaml' else 'json'
    sys.stdout.write(documents.dump(value, kind).decode().rstrip('\n') + '\n')


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Give a function that shows (what, done, total), on a terminal."""
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
