"""Print lists and documents: tables for people, other forms for programs.

Writes to standard output; progress bars to standard error.
"""

from __future__ import annotations

import contextlib
import csv
import difflib
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from scheduler_service.cmd import tables
from scheduler_service.cmd.parser_parts import WrongUsage
from scheduler_service.model import documents

cell = tables.cell
# How a terminal is told to print what follows, and then as before.
_STYLES = {'bold': '\x1b[1m', 'title': '\x1b[3m', 'error': '\x1b[1;31m'}
_PLAIN = '\x1b[0m'
_TEN = '0123456789'
# Of the values that an option may have, so many are named.
_MOST_NAMED = 20
# Among so many the one that is meant is looked for: half a second's work.
_MOST_COMPARED = 20_000
_DIGITS = re.compile(r'(\d+)', re.ASCII)


def listing(
    rows: Iterable[Mapping[str, Any]],
    columns: Sequence[str],
    args: Any,
    more: Sequence[str] = (),
) -> None:
    """Print rows as the options of the list ask for.

    :param columns: of a table, where no others are asked for
    :param args: parsed arguments: ``format``, and if they are there
        ``columns``, ``sort`` and ``limit``; or the format alone
    :param more: columns that rows have beside those
    :raises WrongUsage: there is no such column
    """
    form = args if isinstance(args, str) else args.format
    found = list(rows)
    names = list(found[0]) if found else list(columns)
    known = list(dict.fromkeys([*columns, *more, *names]))
    asked, order = check(args, known)
    found = _sorted(found, order)
    limit = getattr(args, 'limit', None)
    if limit:
        found = found[:limit]
    shown = asked or list(columns)
    if form == 'table':
        table(found, shown)
    elif form == 'value':
        write(' '.join(cell(row.get(name)) for name in shown) for row in found)
    elif form == 'csv':
        write(_csv(found, shown))
    else:
        keys = asked or names
        document([{key: row.get(key) for key in keys} for row in found], form)


def check(
    args: Any, known: Sequence[str]
) -> tuple[list[str], list[tuple[str, bool]]]:
    """Return the columns that are asked for, and those to sort by.

    A command that changes something calls it before that.

    :param args: as of :func:`listing`
    :param known: all columns that there are
    :return: names; (name, whether the largest comes first)
    :raises WrongUsage: there is no such column
    """
    return (
        _asked(getattr(args, 'columns', None), known),
        _order(getattr(args, 'sort', None), known),
    )


def _asked(given: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """Return the columns that are asked for, each of which has to exist."""
    asked = [
        name.strip().replace(' ', '_')
        for one in given or ()
        for name in one.split(',')
        if name.strip()
    ]
    for name in asked:
        _check_column(name, known)
    return asked


def _check_column(name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise WrongUsage(
            f'there is no column {name}; there are {", ".join(known)}'
        )


def _order(
    wanted: Sequence[str] | None, known: Sequence[str]
) -> list[tuple[str, bool]]:
    """Return (name, whether the largest comes first) of columns."""
    found = []
    for one in (name for part in wanted or () for name in part.split(',')):
        if not one:
            continue
        name, _, order = one.partition(':')
        if order not in ('', 'asc', 'desc'):
            raise WrongUsage(
                f'{one}: expected COLUMN, COLUMN:asc or COLUMN:desc'
            )
        _check_column(name, known)
        found.append((name, order == 'desc'))
    return found


def _sorted(
    rows: list[Mapping[str, Any]], order: Sequence[tuple[str, bool]]
) -> list[Mapping[str, Any]]:
    """Return rows by columns, of which the first counts most."""
    for name, largest_first in reversed(order):
        filled = [row for row in rows if row.get(name) is not None]
        empty = [row for row in rows if row.get(name) is None]
        key = _key(filled, name)
        rows = sorted(filled, key=key, reverse=largest_first) + empty
    return rows


def _key(rows: Sequence[Mapping[str, Any]], name: str) -> Callable[..., Any]:
    """Return what rows are compared by: the value, or else its text.

    Numbers within texts count as numbers: host-9 comes before host-10.
    """
    if all(isinstance(row[name], int | float) for row in rows):
        return lambda row: row[name]
    return lambda row: [
        (0, int(part), '') if part[0] in _TEN else (1, 0, part)
        for part in _DIGITS.split(cell(row[name]))
        if part
    ]


def _csv(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> Iterator[str]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator='\n')
    writer.writerow(columns)
    writer.writerows([cell(row.get(name)) for name in columns] for row in rows)
    return iter(text.getvalue().removesuffix('\n').split('\n'))


def table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    title: str | None = None,
) -> None:
    """Print a table, as wide as it has to be unless it is on a terminal."""
    width = None
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    if title:
        say(cell(title), 'title')
    write(tables.lines(rows, columns, width))


def say(text: str, style: str = '') -> None:
    """Print a sentence, on a terminal in a style."""
    if style and sys.stdout.isatty() and 'NO_COLOR' not in os.environ:
        text = f'{_STYLES[style]}{text}{_PLAIN}'
    write([text])


def fields(value: Mapping[str, Any], width: int = 79) -> None:
    """Print the fields of one thing below each other, nested ones indented."""
    write(_field_lines(value, '', width))


def _field_lines(
    value: Mapping[str, Any], indent: str, width: int
) -> Iterator[str]:
    simple = [key for key, one in value.items() if not _is_nested(one)]
    size = max((len(str(key)) for key in simple), default=0)
    for key, one in value.items():
        name = str(key).replace('_', ' ')
        if isinstance(one, Mapping) and one:
            yield f'{indent}{name}:'
            yield from _field_lines(one, indent + '  ', width)
        elif _is_nested(one):
            yield f'{indent}{name}:'
            for item in one:
                yield from _hanging(f'{indent}  - ', cell(item), width)
        else:
            start = f'{indent}{name}'.ljust(len(indent) + size + 2)
            text = 'none' if one in (None, [], {}, ()) else cell(one)
            yield from _hanging(start, text, width)


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple) and bool(value)


def _hanging(start: str, text: str, width: int) -> Iterator[str]:
    """Yield a text in lines of a width, the later ones indented."""
    for part in tables.folded(text, max(width - len(start), 20)):
        yield start + part
        start = ' ' * len(start)


def nothing_matches(option: str, value: str, known: Iterable[str]) -> None:
    """Print on standard error that nothing has the value of an option.

    Nothing is printed where the value is known.

    :param option: of the command line, such as ``--zone``
    :param known: the values that there are
    """
    names = sorted(set(known))
    if value in names:
        return
    there = f'there are {some(names)}'
    few = len(names) <= _MOST_COMPARED
    near = difflib.get_close_matches(value, names, 1) if few else []
    hint = f'; is {near[0]} meant?' if near else ''
    text = f'{option} {value}: nothing matches; '
    text += f'{there}{hint}' if names else 'there are none'
    print(cell(text), file=sys.stderr)


def some(names: Sequence[str]) -> str:
    """Return the first names as a text, and how many more there are."""
    text = ', '.join(names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f'{text} and {more} more' if more > 0 else text


def write(lines: Iterable[str]) -> None:
    """Print lines; characters that the terminal does not know as escapes."""
    text = '\n'.join(lines)
    if not text:
        return
    encoding = sys.stdout.encoding or 'utf-8'
    known = text.encode(encoding, 'backslashreplace').decode(encoding)
    sys.stdout.write(known + '\n')


def document(value: Any, form: str) -> None:
    """Print a document as JSON or YAML."""
    kind = 'yaml' if form == 'yaml' else 'json'
    text = documents.dump(value, kind).rstrip(b'\n') + b'\n'
    # In UTF-8, whatever the encoding of the terminal: programs read it.
    if hasattr(sys.stdout, 'buffer'):
        sys.stdout.flush()
        sys.stdout.buffer.write(text)
    else:
        sys.stdout.write(text.decode())


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Give a function that shows progress by (what, done, total).

    It does nothing unless standard error is a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=sys.stderr, highlight=False)
    with Progress(console=console, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        yield show
