"""Prints lists, documents and results, as tables or for programs.

Results go to standard output; progress bars and remarks to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler_service import errors, moments, texts
from scheduler_service.cmd.program import WrongUsage
from scheduler_service.texts import cell, figure, printable

# Escape sequences of a terminal for a style, and back.
_STYLES = {'bold': '\x1b[1m', 'title': '\x1b[3m', 'error': '\x1b[1;31m'}
_PLAIN = '\x1b[0m'
_DIGITS = re.compile(r'(\d+)', re.ASCII)


class Listing(NamedTuple):
    """What a list prints.

    :ivar rows: by the names of their columns
    :ivar columns: of a table by default
    :ivar more: further columns that rows have
    :ivar total: how many there are, where *rows* are not all
    :ivar status: exit status
    """

    rows: Sequence[Mapping[str, Any]]
    columns: Sequence[str]
    more: Sequence[str] = ()
    total: int | str | None = None
    status: int = 0


def query_limit(args: Any) -> int | None:
    """Return how many rows a list reads; None: all.

    A row more than is printed shows that there are more. Any order but that by
    time needs all rows.
    """
    return None if args.sort_columns or not args.limit else args.limit + 1


def arranged(
    listing: Listing, args: Any
) -> tuple[Sequence[str], list[list[Any]], str]:
    """Return columns, rows, and a remark on those that ``--limit`` leaves out.

    :param args: parsed arguments of a list
    :raises WrongUsage: a column does not exist
    """
    rows = listing.rows
    names = list(rows[0]) if rows else list(listing.columns)
    known = dict.fromkeys([*listing.columns, *listing.more, *names])
    chosen, order = check(args, list(known))
    for name in reversed(order):
        rows = _sorted(rows, name, args.sort_direction == 'desc')
    kept = rows[: args.limit] if args.limit else rows
    documents = args.formatter in ('json', 'yaml')
    columns = chosen or (names if documents else listing.columns)
    remark = ''
    if len(kept) < len(rows):
        total = listing.total or len(rows)
        remark = f'{len(kept)} of {total} rows; --limit 0 prints all'
    shown_rows = [
        [shown(row.get(name), args) for name in columns] for row in kept
    ]
    return columns, shown_rows, remark


def shown(value: Any, args: Any) -> Any:
    """Return a value as a format prints it: safe for terminals, if as text."""
    if args.formatter in ('json', 'yaml'):
        return msgspec.to_builtins(value, enc_hook=str)
    if args.formatter == 'csv':
        return texts.csv_cell(value)
    if type(value) in (int, float) and args.formatter == 'table':
        return value
    return cell(value)


def check(args: Any, columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the requested columns, and the columns to sort by.

    A command that changes something calls this function before the change.

    :param args: as of :func:`arranged`
    :param columns: all columns
    :raises WrongUsage: a column does not exist
    """
    chosen, order = (
        [name.strip().lower().replace(' ', '_') for name in names]
        for names in (args.columns, args.sort_columns)
    )
    for name in (*chosen, *order):
        if name not in columns:
            raise WrongUsage(
                f'there is no column {name}; there are {", ".join(columns)}'
            )
    return chosen, order


def _sorted(
    rows: Sequence[Mapping[str, Any]], name: str, descending: bool
) -> list[Mapping[str, Any]]:
    """Return rows sorted by a column; rows without a value come last.

    Numbers within texts count as numbers: host-9 comes before host-10.
    """
    filled = [row for row in rows if row.get(name) is not None]
    empty = [row for row in rows if row.get(name) is None]
    numeric = all(isinstance(row[name], int | float) for row in filled)

    def key(row: Mapping[str, Any]) -> Any:
        if numeric:
            return row[name]
        return [
            (0, int(part), '') if _DIGITS.match(part) else (1, 0, part)
            for part in _DIGITS.split(cell(row[name]))
            if part
        ]

    return sorted(filled, key=key, reverse=descending) + empty


def table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    title: str | None = None,
) -> None:
    """Print a table at full width; on a terminal, fold it to fit."""
    from cliff.formatters.table import TableFormatter

    if title:
        say(title, 'title')
    args = argparse.Namespace(
        formatter='table', print_empty=True, max_width=0, fit_width=False
    )
    cells = [[shown(row.get(name), args) for name in columns] for row in rows]
    TableFormatter().emit_list(columns, cells, sys.stdout, args)


def remark(*sentences: str) -> None:
    """Print sentences on standard error; an empty one is none."""
    for text in filter(None, sentences):
        print(cell(text), file=sys.stderr)


def say_oldest(oldest: float | None, since: float) -> None:
    """Say where the history does not go back to a time.

    :param oldest: when it begins; None: nothing is recorded
    """
    if oldest is None:
        remark('Nothing is recorded')
    elif oldest > since:
        remark(f'The history goes back to {moments.text(oldest)}')


def say(text: str, style: str = '') -> None:
    """Print a sentence, on a terminal in a style."""
    text = printable(text)
    if style and sys.stdout.isatty() and 'NO_COLOR' not in os.environ:
        text = f'{_STYLES[style]}{text}{_PLAIN}'
    write([text])


def write(lines: Iterable[str]) -> None:
    """Print lines; escape characters that the terminal cannot encode."""
    text = '\n'.join(lines)
    if not text:
        return
    encoding = sys.stdout.encoding or 'utf-8'
    text = text.encode(encoding, 'backslashreplace').decode(encoding)
    sys.stdout.write(text + '\n')


def encoded(value: Any, form: str) -> bytes:
    """Return a document as JSON, or in any other format as YAML."""
    from scheduler_service.model import documents

    kind = 'json' if form == 'json' else 'yaml'
    return documents.dump(value, kind).rstrip(b'\n') + b'\n'


def document(value: Any, form: str) -> None:
    """Print a document as JSON, or in any other format as YAML."""
    text = encoded(value, form)
    # Always UTF-8, since programs read it.
    if hasattr(sys.stdout, 'buffer'):
        sys.stdout.flush()
        sys.stdout.buffer.write(text)
    else:
        sys.stdout.write(text.decode())


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that shows progress by (what, done, total).

    The function shows nothing unless standard error is a terminal.
    """
    from rich.console import Console
    from rich.progress import Progress

    hidden = not sys.stderr.isatty()
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=hidden) as bars:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        yield show


def placements(result: Mapping[str, Any]) -> None:
    rows = [
        {
            'instance': placement['instance_uuid'],
            **placement['selected'],
            'alternates': [
                alternate['host']
                for alternate in placement.get('alternates', ())
            ],
        }
        for placement in result['placements']
    ]
    columns = ['instance', 'host', 'node', 'zone', 'limits', 'alternates']
    table(rows, columns, title=f'Request {result["request_id"]}')


def decision(row: Mapping[str, Any]) -> None:
    """Print a decision with its reasons, as it is kept."""
    times = f', {row["times"]} times since {row["first_at"]}'
    say(
        f'{row["created_at"]}  {row["kind"]}: {row["outcome"]}'
        f'{times if row["times"] > 1 else ""}'
    )
    origin(row)
    if row.get('placements'):
        placements(row)
    if row.get('pool_id'):
        pool(row)
    explanation(row.get('explanation'))
    if row.get('error'):
        say(row['error']['message'])
        explanation(row['error']['facts'])


def origin(decision: Mapping[str, Any]) -> None:
    """Print what was asked for, by whom, and which daemon decided."""
    facts = {
        'pod': decision.get('pod'),
        'of group': decision.get('scheduling_group'),
        'asked for': decision.get('asked'),
        'by user': decision.get('user_id'),
        'decided by': decision.get('daemon'),
        'with configuration': decision.get('configuration'),
        'after (ms)': decision.get('duration_ms'),
    }
    for name, value in facts.items():
        if value is not None:
            say(f'{name} {cell(value)}')


def pool(result: Mapping[str, Any]) -> None:
    table([result], ['zone_id', 'pool_name', 'pool_id'])


def explanation(reasons: Mapping[str, Any] | None) -> None:
    """Print the funnel, the best hosts and the rejections by filter."""
    if not reasons:
        return
    if reasons.get('kept'):
        say('The zone has had this pool before.')
    steps = reasons.get('funnel') or []
    if steps and 'left' in steps[0]:
        title = f'{reasons["pools"]} pools at the start'
        table(steps, ['filter', 'left', 'pools'], title=title)
    elif steps:
        rows = [
            {**step, 'removed': step['start'] - step['end']} for step in steps
        ]
        title = f'{reasons["hosts"]} hosts at the start'
        table(rows, ['filter', 'start', 'removed', 'end'], title=title)
    if finalists := reasons.get('finalists'):
        title = f'Best of {reasons["passed"]} hosts that passed'
        if drawn := reasons.get('drawn_from'):
            title += f'; one was drawn from the best {drawn}'
        columns = ['host', 'weight', 'weights', 'raw', 'multipliers']
        rows = [{'chosen': False, **each} for each in finalists]
        table(rows, [*columns, 'chosen'], title=title)
    if filters := reasons.get('filters'):
        rejections(filters)
    if excluded := reasons.get('excluded_hosts'):
        rows = [{'host': host, 'reason': excluded[host]} for host in excluded]
        table(rows, ['host', 'reason'], title='Hosts that were left out')


def rejections(filters: Sequence[Mapping[str, Any]]) -> None:
    """Print which filters reject hosts, and the nearest miss of each."""
    rows = []
    for item in filters:
        closest = None
        if miss := item.get('closest'):
            name = miss.get('host') or miss['pool']
            closest = f'{name} lacks {figure(miss["lacks"])} {miss["unit"]}'
        rows.append({**item, 'closest': closest})
    columns = ['filter', 'out', 'alone', 'closest', 'reason']
    if rows:
        table(rows, columns, title='Filters that reject hosts')


def filter_results(nodes: Iterable[Mapping[str, Any]]) -> None:
    for node in nodes:
        title = f'{node["host"]} ({node["node"]})'
        table(node['filters'], ['filter', 'passes', 'reason'], title=title)


def failure(error: errors.SchedulerError) -> None:
    text = str(error.args[0]) if error.args else ''
    say(f'{error.name}: {text}', 'error')
    explanation(error.facts)
