"""The cloud as a picture: a cell for each host, in blocks by place.

Pictures are PNG with a palette, made of NumPy arrays. Array operations and
compression give the interpreter's lock away.
"""

from __future__ import annotations

import struct
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from scheduler_service import errors, texts
from scheduler_service.columns import HostTable
from scheduler_service.columns.dictionary import (
    DictionaryColumn,
    Ints,
    Mask,
    Rows,
)
from scheduler_service.listings import Listings
from scheduler_service.model import STANDARD_CLASSES, Flavor, Request
from scheduler_service.planning import headroom, host_listing
from scheduler_service.settings import Settings

Pixels = npt.NDArray[np.uint8]
PLACES = ('zone', 'aggregate', 'cell')
# All who look within this time see the same picture, in seconds.
_SHARED_S = 2.0
# In pixels: a block is whole on a telephone, and others stand beside it.
WIDTH = 360
# The largest number of hosts, and the width of a cell in pixels for it.
_SIZES = ((1_500, 12), (30_000, 6), (float('inf'), 4))
# Hosts by tenths of their fullest resource; the last two are full or over,
# and without capacity.
LEVELS = (
    *(f'{n} to {n + 10} %' for n in range(0, 100, 10)),
    '100 % or more',
    'no capacity',
)
_FULL, _NONE = 10, 11
# What cells stand on, by day and night.
_GROUND = np.array([29, 35, 42])
# From dark blue to bright yellow, most of the way from 50 % on: also told
# apart by lightness, and by blue and yellow alone.
_STOPS = {0: (74, 90, 154), 5: (124, 92, 186), 7: (205, 110, 160),
          9: (250, 172, 80), 10: (255, 240, 110)}  # fmt: skip
_SCALE = np.array([
    np.interp(np.arange(11), [*_STOPS], stops)
    for stops in zip(*_STOPS.values(), strict=True)
]).T  # fmt: skip
_COLOURS = np.vstack([_SCALE, [(122, 130, 140)]])
# Nothing, the colour of each level, and these where a flavor does not fit.
_PALETTE = (
    np.vstack([[_GROUND], _COLOURS, 0.3 * _COLOURS + 0.7 * _GROUND])
    .round()
    .astype(np.uint8)
)
COLOURS = [
    f'#{r:02x}{g:02x}{b:02x}'
    for r, g, b in _PALETTE[1 : len(LEVELS) + 1].tolist()
]
# Shapes of cells.
_DISABLED, _DOWN = 1, 2
# Names that are made an array at once; another thread may run between.
_PART = 10_000


class Picture:
    """All hosts at one moment.

    :param by: one of :data:`PLACES`
    :param resource: class whose use colours the cells; None: the fullest
    :param fitting: hosts that stand out, bool[n]; None: all
    :ivar size: width and height of a cell in pixels
    :ivar blocks: by names of places: rows of the table, as cells stand
    :ivar fitting: the hosts that stand out
    :ivar levels: the place in :data:`LEVELS` of each host, int8[n]
    :ivar disabled: how many are
    :ivar down: how many are
    :ivar counts: hosts by :data:`LEVELS`
    """

    def __init__(
        self,
        table: HostTable,
        settings: Settings,
        by: str,
        resource: str | None,
        fitting: Mask | None = None,
    ) -> None:
        self.table, self.fitting = table, fitting
        self.size = next(s for most, s in _SIZES if len(table) <= most)
        names, codes = headroom.largest(*_places(table, by, settings))
        # By place, host and node.
        ranks = [_ranks(table.coded[name]) for name in ('node', 'host')]
        order = np.lexsort((*ranks, codes))
        ends = np.cumsum(np.bincount(codes, minlength=len(names)))
        self.blocks: dict[str, Rows] = dict(
            zip(names, np.split(order, ends), strict=False)
        )
        classes = (resource,) if resource else STANDARD_CLASSES
        percent = host_listing.percent_used(table, settings, classes)
        levels = np.minimum(percent // 10, _FULL).astype(np.int8)
        levels[percent < 0] = _NONE
        self.levels = levels
        self.counts = np.bincount(levels, minlength=len(LEVELS)).tolist()
        disabled, down = ~table.number('enabled'), ~table.number('up')
        self.disabled, self.down = int(disabled.sum()), int(down.sum())
        colours = levels + 1
        if fitting is not None:
            colours[~fitting] += len(LEVELS)
        self._colours = colours
        self._shapes = np.where(down, _DOWN, np.where(disabled, _DISABLED, 0))
        self._made: dict[str, bytes] = {}

    @property
    def columns(self) -> int:
        """How many cells stand beside each other."""
        return WIDTH // self.size

    def height(self, block: str) -> int:
        """Return the height of a block in pixels."""
        return -(-len(self.blocks[block]) // self.columns) * self.size

    def at(self, block: str, x: int, y: int) -> int | None:
        """Return the row of the host at a pixel; None: there is none."""
        column, rows = x // self.size, self.blocks[block]
        place = y // self.size * self.columns + column
        inside = column < self.columns and place < len(rows)
        return int(rows[place]) if inside else None

    def png(self, block: str) -> bytes:
        """Return the picture of a block."""
        made = self._made.get(block)
        if made is None:
            size, columns, rows = self.size, self.columns, self.blocks[block]
            lines = self.height(block) // size
            filled = np.zeros((lines * columns, size, size), np.uint8)
            filled[: len(rows)] = (
                _glyphs(size)[self._shapes[rows]]
                * self._colours[rows].astype(np.uint8)[:, None, None]
            )
            cells = filled.reshape(lines, columns, size, size)
            pixels = cells.transpose(0, 2, 1, 3).reshape(lines * size, -1)
            made = self._made[block] = png(pixels, _PALETTE)
        return made


class Pictures:
    """Makes pictures of the newest table; any thread may call it."""

    def __init__(self, listings: Listings) -> None:
        self._listings = listings
        self._lock = threading.Lock()
        # By place, resource and flavor, with when it was made.
        self._made: dict[Any, tuple[Picture, float]] = {}

    def get(
        self, by: str, resource: str | None, flavor: Flavor | None = None
    ) -> Picture:
        """Return a picture that is at most two seconds old.

        :param flavor: hosts that it fits on stand out
        :raises NotFound: no host offers the resource
        """
        with self._lock:
            now = time.monotonic()
            key = by, resource, flavor and msgspec.json.encode(flavor)
            self._made = {
                each: (made, at)
                for each, (made, at) in self._made.items()
                if now - at < _SHARED_S
            }
            if key not in self._made:
                table = self._listings.table()
                if resource:
                    check('resource', resource, table.resources)
                fitting = None
                if flavor is not None:
                    wanted = Request(flavor=flavor)
                    fitting = self._listings.fitting(table, wanted)
                made = Picture(
                    table, self._listings.settings, by, resource, fitting
                )
                self._made[key] = made, now
            return self._made[key][0]


def check(what: str, value: str, values: Iterable[str]) -> None:
    """Check that there is something of a name.

    :raises NotFound: there is none; the nearest one is named
    """
    text = texts.nothing_matches(what, value, values)
    if text:
        raise errors.NotFound(text)


def png(pixels: Pixels, palette: Pixels) -> bytes:
    """Return a picture as PNG; the first colour is transparent.

    :param pixels: colours, uint8[height, width]
    :param palette: red, green and blue of each colour, uint8[m, 3]
    """

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack('>I', len(content)) + kind + content + struct.pack(
            '>I', check
        )  # fmt: skip

    height, width = pixels.shape
    # Each line begins with the number of its filter: none.
    lines = np.pad(pixels, ((0, 0), (1, 0)))
    return b'\x89PNG\r\n\x1a\n' + b''.join(
        (
            chunk(b'IHDR', struct.pack('>IIBBBBB', width, height, 8, 3,
                                       0, 0, 0)),
            chunk(b'PLTE', palette.tobytes()),
            chunk(b'tRNS', b'\0'),
            chunk(b'IDAT', zlib.compress(lines.data, 1)),
            chunk(b'IEND', b''),
        )
    )  # fmt: skip


def _glyphs(size: int) -> Pixels:
    """Return the shapes of cells: a square, a frame and a cross.

    :return: uint8[3, size, size]; 1 where there is colour
    """
    glyphs = np.zeros((3, size, size), np.uint8)
    inner = size - 1
    glyphs[:, :inner, :inner] = 1
    edge = max(1, inner // 5)
    glyphs[_DISABLED, edge : inner - edge, edge : inner - edge] = 0
    distance = np.abs(np.subtract.outer(np.arange(inner), np.arange(inner)))
    cross = (distance < edge) | (distance[::-1] < edge)
    glyphs[_DOWN, :inner, :inner] = cross
    return glyphs


def _places(
    table: HostTable, by: str, settings: Settings
) -> tuple[list[str], Rows]:
    """Return the names of places, sorted, and the place of each host."""
    if by == 'zone':
        return headroom.zones(table, settings)
    if by == 'cell':
        cells = table.coded['cell_uuid']
        return headroom.named(cells, [v or 'no cell' for v in cells.values])
    sets, known = table.coded['aggregate_set'], table.topology.aggregates
    return headroom.named(
        sets,
        [
            ', '.join(sorted(known[key].name for key in ids)) or 'none'
            for ids in sets.values
        ],
    )


def _ranks(column: DictionaryColumn) -> Ints:
    """Return the place of each row's value among the sorted values."""
    values = np.concatenate(list(_parts(column.values)) or [np.array([b''])])
    ranks = np.empty(len(values), np.int64)
    ranks[np.argsort(values, kind='stable')] = np.arange(len(values))
    return ranks[column.codes]


def _parts(values: Sequence[str]) -> Iterator[npt.NDArray[Any]]:
    # Bytes of UTF-8 have the order of the characters.
    for start in range(0, len(values), _PART):
        yield np.array([v.encode() for v in values[start : start + _PART]])
