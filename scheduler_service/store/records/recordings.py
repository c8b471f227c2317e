"""The recordings of daemons in the store: what each saw and decided.

The blocks of a daemon's run are numbered. A *stretch* of them begins with a
checkpoint: with the whole host table. What cannot be read raises
``NotRecorded``, with a sentence.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.model import Request
from scheduler_service.store import clock, schema
from scheduler_service.store.connection import Writer
from scheduler_service.store.records import recording_format
from scheduler_service.store.records.recording_format import (
    Block,
    Entry,
    RecordedDecision,
)

# The most blocks that are deleted in a transaction.
_AT_ONCE = 1000
_BLOCKS = schema.history
_INSERT = sa.insert(_BLOCKS)
_DATA = sa.select(_BLOCKS.c.data, _BLOCKS.c.size, _BLOCKS.c.created_at).where(
    _BLOCKS.c.run == sa.bindparam('of'), _BLOCKS.c.number == sa.bindparam('at')
)
#: What ``begins`` of a block says: where it begins a stretch, whether the
#: entries before it lead to its checkpoint, or some of them could not be
#: stored; or that its run stops in order.
ENDS, NO, ANEW, FOLLOWS, LOST = range(-1, 4)


class NewBlock(NamedTuple):
    """A block that is to be stored.

    :ivar begins: see :data:`NO`
    """

    number: int
    begins: int
    data: bytes


def insert(
    conn: Connection, run: int, made: Sequence[NewBlock], again: bool
) -> None:
    """Store blocks of a run.

    :param again: whether some may be stored already
    """
    stored, columns = 0, _BLOCKS.c
    if again:
        newest = sa.func.max(columns.number)
        query = sa.select(newest).where(columns.run == run)
        stored = conn.execute(query).scalar() or 0
    values = [
        {'run': run, 'size': len(block.data), **block._asdict()}
        for block in made
        if block.number > stored
    ]
    if values:
        conn.execute(_INSERT, values)


def is_stored(conn: Connection, run: int, number: int) -> bool:
    """Return whether a block is stored, whatever is in it."""
    columns = _BLOCKS.c
    found = sa.select(columns.begins).where(
        columns.run == run, columns.number == number
    )
    return conn.execute(found).first() is not None


def excess(conn: Connection, keep_bytes: int, keep_s: float) -> Stretch | None:
    """Return the oldest stretch that is to be deleted; None: none is.

    It ended more than *keep_s* ago, or all blocks are larger than
    *keep_bytes*, and it is not a run's newest.
    """
    found = stretches(conn, every=True)
    newest = {each.run: each for each in found}
    size = sa.select(sa.func.sum(_BLOCKS.c.size))
    is_full = (conn.execute(size).scalar() or 0) > keep_bytes
    before = clock.read(conn) - keep_s
    going = [
        each
        for each in found
        if each.ended_at < before or (is_full and newest[each.run] is not each)
    ]
    return min(going, key=lambda each: each.began_at, default=None)


def delete(writer: Writer, stretch: Stretch, most: int = 8 * 2**20) -> int:
    """Delete the newest blocks of a stretch, so that the others can be read.

    :param most: of their size, in bytes
    :return: how many were deleted; 0: there are no more
    """
    columns = _BLOCKS.c
    of_stretch = sa.and_(
        columns.run == stretch.run,
        columns.number.between(stretch.first, stretch.last),
    )
    sizes = sa.select(columns.number, columns.size).where(of_stretch)
    sizes = sizes.order_by(columns.number.desc()).limit(_AT_ONCE)
    least, size = stretch.last + 1, 0
    for number, own in writer.conn.execute(sizes):
        size += own
        if size > most and least <= stretch.last:
            break
        least = number
    delete = sa.delete(_BLOCKS).where(of_stretch, columns.number >= least)
    return writer.conn.execute(delete).rowcount


class Stretch(NamedTuple):
    """Blocks that begin with a checkpoint.

    :ivar run: of a daemon
    :ivar first: number of the block that it begins with
    :ivar last: number of the newest block
    :ivar begins: of the first block
    :ivar began_at: seconds since the epoch, by the database's clock
    :ivar ended_at: of the newest block
    :ivar stops: whether the run stopped in order with it
    """

    run: int
    first: int
    last: int
    begins: int
    began_at: float
    ended_at: float
    stops: bool

    @property
    def follows(self) -> bool:
        """Whether the stretch before leads to its checkpoint."""
        return self.begins == FOLLOWS


def stretches(conn: Connection, every: bool = False) -> list[Stretch]:
    """Return all stretches, by run, in their order.

    :param every: also blocks without a checkpoint before them
    """
    columns = _BLOCKS.c
    mark = sa.select(
        columns.run, columns.number, columns.begins, columns.created_at
    ).order_by(columns.run, columns.number)
    marks = defaultdict[int, list[Any]](list)
    for row in conn.execute(mark.where(columns.begins > NO)):
        marks[row.run].append(row)
    number = columns.number
    ends = sa.select(columns.run, sa.func.min(number), sa.func.max(number))
    found = []
    for run, *both in conn.execute(ends.group_by(columns.run)).all():
        of_run = mark.where(columns.run == run, number.in_(both))
        rows = conn.execute(of_run).all()
        if every and rows[0].begins <= NO:
            marks[run].insert(0, rows[0])
        end = run, rows[-1].number + 1, rows[-1].begins, rows[-1].created_at
        found += [
            Stretch(run, first, after[1] - 1, begins, at, after[3],
                    stops=after[2] == ENDS)
            for (_, first, begins, at), after
            in itertools.pairwise([*marks[run], end])
        ]  # fmt: skip
    return sorted(found)


def first_of_stretch(conn: Connection, run: int, number: int) -> int:
    """Return the block that begins the stretch of a block.

    :raises NotRecorded: there is none
    """
    columns = _BLOCKS.c
    first = conn.execute(
        sa.select(sa.func.max(columns.number)).where(
            columns.run == run, columns.number <= number, columns.begins > NO
        )
    ).scalar()
    if first is None:
        raise errors.NotRecorded('The history does not go back as far as that')
    return int(first)


def block_times(conn: Connection, stretch: Stretch) -> dict[int, float]:
    """Return when each block of a stretch was stored."""
    columns = _BLOCKS.c
    query = sa.select(columns.number, columns.created_at).where(
        columns.run == stretch.run,
        columns.number.between(stretch.first, stretch.last),
    )
    return {row.number: row.created_at for row in conn.execute(query)}


def daemon_of(conn: Connection, some: Sequence[Stretch]) -> str:
    """Return the name of the daemon of a run; empty: it cannot be read."""
    reader = Reader(conn, some[0].run)
    for number in (some[-1].last, some[0].first):
        with contextlib.suppress(errors.NotRecorded):
            return reader.block(number).daemon
    return ''


class Reader:
    """Reads blocks of a run, and their entries."""

    def __init__(self, conn: Connection, run: int) -> None:
        self._conn, self._run = conn, run
        self._known: dict[int, list[bytes]] = {}

    def entries(
        self, first: int, last: int
    ) -> Iterator[tuple[Block, int, Entry]]:
        """Yield the entries of blocks, each after its block and index there.

        :raises NotRecorded: a block cannot be read
        """
        for number in range(first, last + 1):
            block = self.block(number)
            for index in range(len(block.kinds)):
                yield block, index, self.entry(block, index)

    def block(self, number: int) -> Block:
        """Return a block.

        :raises NotRecorded: it is missing, damaged, or of another format
        """
        at = {'of': self._run, 'at': number}
        stored = self._conn.execute(_DATA, at).first()
        name = f'Block {number} of run {self._run}'
        if stored is None:
            raise errors.NotRecorded(f'{name} is missing')
        data, size, stored_at = stored
        block = recording_format.unpacked(data, size, name)
        self._known[number], block.known = block.parts, self._known
        block.number, block.stored_at = number, stored_at
        return block

    def entry(self, block: Block, index: int) -> Entry:
        """Return an entry, once the parts of its request are read.

        :raises NotRecorded: it or a block with a part cannot be read
        """
        entry = block.entry(index)
        if isinstance(entry, RecordedDecision):
            for part in entry.parts:
                number, _ = block.places[part]
                if number not in self._known:
                    self.block(number)
        return entry


def requests(
    conn: Connection, places: Collection[tuple[int, int, int]]
) -> dict[tuple[int, int, int], Request]:
    """Return the requests of decisions by their places, as far as they can
    be read.
    """
    found, readers = {}, dict[int, Reader]()
    by_block = itertools.groupby(sorted(places), operator.itemgetter(0, 1))
    for (run, number), some in by_block:
        reader = readers.setdefault(run, Reader(conn, run))
        with contextlib.suppress(errors.NotRecorded):
            block = reader.block(number)
            for place in some:
                entry = reader.entry(block, place[2])
                if isinstance(entry, RecordedDecision):
                    found[place] = block.request(entry)
    return found
