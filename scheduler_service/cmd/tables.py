"""Lists as text for people: columns that line up, for any number of rows.

Stateless. Folds long cells where the width is limited, as on a terminal.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_GAP = '  '
# A column is made no narrower than this to fit a terminal.
_NARROWEST = 8
# Control characters would move the cursor of the terminal, or worse; others
# turn the direction in which a line is read.
_TURNING = (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = {
    code: repr(chr(code))[1:-1]
    for code in (*range(32), *range(127, 160), *_TURNING)
}


def lines(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    width: int | None = None,
) -> Iterator[str]:
    """Yield the lines of a table: the heading, a rule, the rows.

    :param rows: by the names of the columns
    :param width: how many characters a line may have; None: any number
    """
    grid = [_cells([row.get(name) for row in rows]) for name in columns]
    heads = [name.replace('_', ' ') for name in columns]
    ascii_only = all(''.join(cells).isascii() for cells in grid)
    length = len if ascii_only else len_of
    widths = [
        max(len_of(head), max(map(length, cells), default=0))
        for head, cells in zip(heads, grid, strict=True)
    ]
    if width is not None:
        _narrow(widths, width)
    right = [_is_number([row.get(name) for row in rows]) for name in columns]
    yield from _folded(heads, widths, [False] * len(heads))
    yield _GAP.join('-' * size for size in widths)
    if width is None and ascii_only:
        form = _GAP.join(
            f'{{:{">" if numeric else "<"}{size}}}'
            for size, numeric in zip(widths, right, strict=True)
        )
        for cells in zip(*grid, strict=True):
            yield form.format(*cells).rstrip()
        return
    for cells in zip(*grid, strict=True):
        yield from _folded(cells, widths, right)


def _cells(values: list[Any]) -> list[str]:
    """Return values as texts; quickly where they are plain texts already."""
    if (
        all(type(value) is str for value in values)
        and ''.join(values).isprintable()
    ):
        return values
    return [cell(value) for value in values]


def cell(value: Any) -> str:
    """Return a value as text on one line."""
    if value is None:
        return ''
    if isinstance(value, str):
        return value if value.isprintable() else value.translate(_CONTROLS)
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if isinstance(value, float):
        return f'{value:.3f}'.rstrip('0').rstrip('.')
    if isinstance(value, Mapping):
        return ', '.join(f'{cell(k)}={cell(v)}' for k, v in value.items())
    if isinstance(value, list | tuple):
        return ', '.join(cell(item) for item in value)
    return str(value).translate(_CONTROLS)


def len_of(text: str) -> int:
    """Return how many places of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_places, text))


def _places(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in 'WF' else 1


def _is_number(values: list[Any]) -> bool:
    """Whether values are numbers, as far as they are there."""
    kinds = {type(value) for value in values} - {type(None)}
    return bool(kinds) and kinds <= {int, float}


def _narrow(widths: list[int], width: int) -> None:
    """Take places from the widest columns until a line fits."""
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    while excess > 0:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1
        excess -= 1


def _folded(
    cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]
) -> Iterator[str]:
    """Yield the lines of one row, whose cells are folded to their widths."""
    parts = [
        folded(text, size) for text, size in zip(cells, widths, strict=True)
    ]
    for number in range(max(map(len, parts), default=0)):
        line = []
        for part, size, numeric in zip(parts, widths, right, strict=True):
            text = part[number] if number < len(part) else ''
            pad = ' ' * (size - len_of(text))
            line.append(pad + text if numeric else text + pad)
        yield _GAP.join(line).rstrip()


def folded(text: str, size: int) -> list[str]:
    """Return a text in pieces of at most *size* places, at spaces if it can.

    A piece has one character at least, however wide that is.
    """
    found = []
    while len_of(text) > size:
        end = places = 0
        for char in text:
            places += _places(char)
            if places > size:
                break
            end += 1
        end = max(end, 1)
        space = text.rfind(' ', 0, end + 1)
        cut = space if space > size // 2 else end
        found.append(text[:cut].rstrip())
        text = text[cut:].lstrip()
    return [*found, text]
