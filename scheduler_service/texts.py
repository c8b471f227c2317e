"""Values as texts, for whoever reads them: commands, ``/v1`` and pages."""

from __future__ import annotations

import csv
import difflib
import io
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Values of an option that a message names.
_MAX_NAMED = 20
# Values among which a similar one is looked for, which takes half a second.
_MAX_COMPARED = 20_000
# Programs that open CSV take a text that begins like this for a formula, also
# after blanks, or in another form of the character, such as full-width.
_FORMULA = ('=', '+', '-', '@')


def printable(text: str) -> str:
    """Return a text as a line that cannot move a terminal's cursor.

    Nor can it reverse the order of the line, or forge another.
    """
    if text.isprintable():
        return text
    return ''.join(
        char if char.isprintable() else ascii(char)[1:-1] for char in text
    )


def figure(value: float) -> str:
    """Return a number as people read it: thousands apart, and short."""
    number = float(value)
    if number.is_integer():
        return f'{int(number):,}'
    return f'{number:,.2f}'.rstrip('0').rstrip('.')


def cell(value: Any) -> str:
    """Return a value as a line of text."""
    if value is None:
        return ''
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if isinstance(value, float):
        return f'{value:.3f}'.rstrip('0').rstrip('.')
    if isinstance(value, Mapping):
        return ', '.join(f'{cell(k)}={cell(v)}' for k, v in value.items())
    if isinstance(value, list | tuple):
        return ', '.join(cell(item) for item in value)
    return printable(str(value))


def csv_table(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str]
) -> str:
    """Return rows as CSV, with a heading.

    A text that begins like a formula gets an apostrophe before it.
    """
    table = io.StringIO()
    writer = csv.writer(table, lineterminator='\n')
    writer.writerow(columns)
    writer.writerows([csv_cell(row.get(name)) for name in columns]
                     for row in rows)  # fmt: skip
    return table.getvalue()


def csv_cell(value: Any) -> str:
    """Return a value as a cell of CSV; no program takes it for a formula."""
    text = cell(value)
    if isinstance(value, int | float):
        return text
    first = unicodedata.normalize('NFKC', text.lstrip()[:1])
    return f"'{text}" if first in _FORMULA else text


def some(names: Sequence[str]) -> str:
    """Return the first names as a text, and the number of further ones."""
    text = ', '.join(names[:_MAX_NAMED])
    more = len(names) - _MAX_NAMED
    return f'{text} and {more} more' if more > 0 else text


def nearest(value: str, names: Sequence[str]) -> str:
    """Return the end of a sentence that asks whether a name is meant.

    :return: empty where no name is similar, or there are very many
    """
    if len(names) > _MAX_COMPARED:
        return ''
    near = difflib.get_close_matches(value, names, 1)
    return f'; is {near[0]} meant?' if near else ''


def nothing_matches(what: str, value: str, values: Iterable[str]) -> str:
    """Return a sentence that says that nothing has a value.

    :param what: that was asked for, such as ``--zone``
    :param values: all existing values
    :return: empty if *values* include the value
    """
    names = sorted(set(values))
    if value in names:
        return ''
    there_are = some(names) or 'none'
    return cell(
        f'{what} {value}: nothing matches; there are {there_are}'
        f'{nearest(value, names)}'
    )
