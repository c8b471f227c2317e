"""What each daemon saw and decided, in blocks that can be read again.

A block is compressed MessagePack of some entries in their order. The blocks of
a daemon's run are numbered. A *stretch* of them begins with a checkpoint: with
the whole host table. From there any state is made again by what made it in
the daemon: ``Update.apply``, ``Release.apply`` and ``Overlay``.

For readers: :func:`stretches` lists what there is, :class:`Playback` yields
the entries of a stretch with the table before each, and :func:`as_of` returns
the :class:`Moment` of a decision, whose place its row of ``decisions`` names
(``run``, ``block``, ``place``). What cannot be read raises ``NotRecorded``,
with a sentence.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import itertools
import math
import operator
import re
import zlib
from collections import defaultdict
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.columns import (
    DictionaryColumn,
    HostTable,
    InstanceIndex,
    Overlay,
    ResourceColumns,
)
from scheduler_service.columns.build import assemble
from scheduler_service.columns.changes import Release, Update
from scheduler_service.columns.dictionary import Ints
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.engine.journal import (
    Changed,
    Decided,
    Ended,
    PodPlaced,
)
from scheduler_service.model import Aggregate, Flavor, Request, ServerGroup
from scheduler_service.pipeline.selection import placed_by
from scheduler_service.store import clock, schema
from scheduler_service.store.connection import Writer

# Blocks of another format are not read.
FORMAT = 1
# How much larger than its stored size a block is at most, once decompressed.
_MOST_TIMES = 256
# The least size of a block of a checkpoint, in bytes before compression, and
# how many instances are encoded at once: for so long the engine may wait.
_BLOCK_BYTES = 2**20
_INSTANCES = 1000
# So many parts of requests are remembered: some megabytes.
_MOST_PARTS = 10_000
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


class Asked(msgspec.Struct, array_like=True, gc=False):
    """A decision, as it is stored.

    :ivar parts: of the request: indexes in ``Block.places`` of its flavor, its
        image, project and user, and the rest
    :ivar request_id: of the request
    :ivar uuids: of the instances
    :ivar order: indexes of the instances that were placed, in that order
    :ivar rows: of the hosts that these were placed on
    :ivar earlier: how many of them earlier turns had placed
    :ivar error: name; empty: the hosts were taken
    :ivar passed: how many hosts passed all filters
    :ivar weight: of the first host that was taken
    :ivar attempt: how often the claim was lost before
    :ivar times: how often it was decided like this, one after the other
    :ivar lent: rows, and amounts that did not count on them
    :ivar bounds: the hosts that extenders and candidates left, by instance:
        store id -> what was added to the weight
    """

    kind: ClassVar[int] = 0

    parts: tuple[int, int, int, int]
    request_id: str | None
    uuids: list[str]
    order: list[int]
    rows: list[int]
    earlier: int = 0
    error: str = ''
    passed: int = 0
    weight: float = 0.0
    attempt: int = 0
    times: int = 1
    lent: tuple[list[int], dict[str, int]] | None = None
    bounds: Sequence[Mapping[int, float]] | None = None

    @property
    def assumes(self) -> int:
        """How many instances are assumed by it."""
        return 0 if self.error else len(self.rows)

    @property
    def placed(self) -> list[tuple[str, int]]:
        """The uuid of each placed instance, and the row of its host."""
        uuids = map(self.uuids.__getitem__, self.order)
        return [*zip(uuids, self.rows, strict=True)]


class Part(msgspec.Struct, array_like=True):
    """A part of a checkpoint.

    :ivar what: ids, number, coded, resource, shared, aggregates, groups or
        instances; end: it was the last one
    :ivar name: of the column
    :ivar data: arrays as (type, bytes)
    """

    kind: ClassVar[int] = 5

    what: str
    name: str = ''
    data: Any = None


Entry = Asked | PodPlaced | Ended | Update | Release | Part | Changed
_KINDS = (Asked, PodPlaced, Ended, Update, Release, Part, Changed)
_DECODERS: list[Callable[[msgspec.Raw], Any]] = [
    msgspec.msgpack.Decoder(kind).decode for kind in _KINDS
]


class Block(msgspec.Struct, array_like=True):
    """Entries of a daemon that were recorded together.

    :ivar daemon: its name
    :ivar version: its release
    :ivar configuration: the fingerprint of its configuration
    :ivar parts: of requests, as JSON, that no block of the stretch before has
    :ivar places: of parts of requests: number of a block, and index in its
        ``parts``
    :ivar kinds: of the entries, a byte each
    :ivar entries: their content
    :ivar number: of the block; this and what follows is not stored with it
    :ivar stored_at: seconds since the epoch, by the database's clock
    :ivar known: number of a block -> its ``parts``, as far as they were read
    """

    format: int
    daemon: str
    version: str
    configuration: str
    parts: list[bytes]
    places: list[tuple[int, int]]
    kinds: bytes
    entries: list[msgspec.Raw]
    number: int = 0
    stored_at: float = 0.0
    known: dict[int, list[bytes]] = {}

    def request(self, decision: Asked) -> Request:
        """Return the request of a decision, as hosts were selected for it."""
        flavor, image, caller, rest = (
            msgspec.json.decode(self.known[number][index])
            for number, index in map(self.places.__getitem__, decision.parts)
        )
        rest['project_id'], rest['user_id'] = caller
        rest |= {
            'request_id': decision.request_id,
            'instance_uuids': decision.uuids,
            'flavor': flavor,
            'image': image,
        }
        return msgspec.convert(rest, Request)


class _Head(msgspec.Struct, array_like=True):
    """What every format begins with."""

    format: int


def _plain(columns: Any) -> Sequence[Any]:
    """Return what stands for an array, or an encoded column, in a block."""
    if isinstance(columns, DictionaryColumn):
        values = [
            sorted(value) if isinstance(value, frozenset) else value
            for value in columns.values
        ]
        return columns.codes, values
    if isinstance(columns, np.ndarray):
        return columns.dtype.str, columns.tobytes()
    raise NotImplementedError


def _columns(kind: Any, stored: Sequence[Any]) -> Any:
    """Return the array, or the encoded column, from what stands for it."""
    first, second = stored
    if kind is not DictionaryColumn:
        return np.frombuffer(second, first).copy()
    values = (
        frozenset(value) if isinstance(value, list) else value
        for value in second
    )
    return DictionaryColumn(_columns(None, first), tuple(values))


_encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_NO_FLAVOR = Flavor()
_encode_text = msgspec.json.Encoder().encode
_decode = msgspec.msgpack.Decoder(Block).decode


# Part of a request, as JSON -> number of the block that has it, and index.
Parts = dict[bytes, tuple[int, int]]


class Packer:
    """Makes a block of entries.

    :param origin: name, release and fingerprint of the configuration
    :param number: of the block
    :param known: parts of requests in the stretch
    :ivar decided: each decision with its index in the block
    """

    def __init__(
        self,
        origin: tuple[str, str, str],
        number: int = 0,
        known: Parts | None = None,
    ) -> None:
        self.decided: list[tuple[Decided, int]] = []
        self._origin, self._number = origin, number
        self._known = {} if known is None else known
        # As of a block; and the index of each of its places.
        self._parts: list[bytes] = []
        self._places: list[tuple[int, int]] = []
        self._indexes: dict[bytes, int] = {}
        self._kinds = bytearray()
        # Encoded at once: the garbage collector would look at objects.
        self._entries: list[bytes] = []
        # The last entry, where it is a refusal.
        self._refused: Asked | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Any) -> int:
        """Add an entry; return its index in the block."""
        last, self._refused, made = self._refused, None, entry
        if isinstance(made, Decided):
            entry = self._asked(made)
            if entry.error:
                self._refused = entry
                if last and entry == msgspec.structs.replace(last, times=1):
                    entry.times = last.times + 1
                    self._kinds.pop()
                    self._entries.pop()
        self._kinds.append(entry.kind)
        self._entries.append(_encode(entry))
        index = len(self._entries) - 1
        if isinstance(made, Decided):
            self.decided.append((made, index))
        return index

    @property
    def last_size(self) -> int:
        """The size of the last entry, in bytes."""
        return len(self._entries[-1])

    def _asked(self, made: Decided) -> Asked:
        request, placed = made.request, made.placed
        order = [0] if placed else []
        if len(request.instance_uuids) > 1:
            place = request.instance_uuids.index
            order = [place(made.uuid) for made in placed]
        best = made.reasons.get('finalists') or {}
        lent = made.lent
        return Asked(
            self._parts_of(request),
            request.request_id,
            request.instance_uuids,
            order,
            [made.row for made in placed],
            made.earlier,
            made.error,
            made.reasons.get('passed', 0),
            best['weight'][best.get('chosen', 0)] if best else 0.0,
            made.attempt,
            1,
            lent and (lent[0].tolist(), dict(lent[1])),
            made.bounds,
        )

    def _parts_of(self, request: Request) -> tuple[int, int, int, int]:
        """Return the parts of a request, as :class:`Asked` has them."""
        rest = copy.copy(request)
        rest.request_id = rest.project_id = rest.user_id = rest.image = None
        rest.flavor, rest.instance_uuids = _NO_FLAVOR, []
        return (
            self._index_of(request.flavor),
            self._index_of(request.image),
            self._index_of((request.project_id, request.user_id)),
            self._index_of(rest),
        )

    def _index_of(self, part: Any) -> int:
        """Return the index in ``Block.places`` of a part of a request."""
        text = _encode_text(part)
        index = self._indexes.get(text)
        if index is None:
            if len(self._known) >= _MOST_PARTS:
                self._known.clear()
            new = self._number, len(self._parts)
            place = self._known.setdefault(text, new)
            if place == new:
                self._parts.append(text)
            index = self._indexes[text] = len(self._places)
            self._places.append(place)
        return index

    def packed(self) -> bytes:
        """Return the block."""
        entries = [*map(msgspec.Raw, self._entries)]
        kinds = bytes(self._kinds)
        requests = self._parts, self._places
        block = FORMAT, *self._origin, *requests, kinds, entries
        plain = _encode(block)
        data = zlib.compress(plain, 1)
        fits = len(plain) <= _MOST_TIMES * len(data)
        return data if fits else zlib.compress(plain, 0)


def checkpoint_blocks(
    table: HostTable, origin: tuple[str, str, str]
) -> Iterator[bytes]:
    """Yield blocks of a checkpoint; the engine goes on in between."""
    packer, size = Packer(origin), 0
    for part in _parts(table):
        packer.add(part)
        size += packer.last_size
        if size >= _BLOCK_BYTES:
            yield packer.packed()
            packer, size = Packer(origin), 0
    yield packer.packed()


def _parts(table: HostTable) -> Iterator[Part]:
    coded = {**table.coded}
    # Aggregates say which of them hosts are in.
    coded.pop('aggregate_set', None)
    yield Part('ids', '', table.ids)
    for what, columns in (
        ('number', table.numbers),
        ('coded', coded),
        ('resource', table.resources),
        ('shared', table.shared),
    ):
        for name, column in columns.items():
            yield Part(what, name, column)
    yield Part('aggregates', '', [*table.topology.aggregates.values()])
    yield Part('groups', '', [*table.groups.values()])
    instances = iter(table.instances)
    while some := [*itertools.islice(instances, _INSTANCES)]:
        yield Part('instances', '', _by_field(some))
    yield Part('end')


def _by_field(some: Sequence[PlacedInstance]) -> list[Any]:
    """Return instances by field: uuids as bytes, images as indexes."""
    uuid, host, node, project, flavor, image, *more = zip(*some, strict=True)
    uuids = bytes.fromhex(''.join(uuid).replace('-', ''))
    at = {each: number for number, each in enumerate({*image})}
    images = [*at], [at[each] for each in image]
    return [uuids, host, node, project, flavor, images, *more]


def _instances(columns: Sequence[Any]) -> Iterator[PlacedInstance]:
    """Return the instances of columns."""
    uuids, host, node, project, flavor, (images, at), *more = columns
    every = [frozenset(map(tuple, image)) for image in images]
    return map(
        PlacedInstance,
        map(_uuid, re.findall('.{32}', uuids.hex())),
        host,
        node,
        project,
        flavor,
        map(every.__getitem__, at),
        *more,
    )


def _uuid(text: str) -> str:
    return f'{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}'


# A decision or a pod, and the block that it is in.
Assumed = tuple[Asked | PodPlaced, Block]


class Recorded(NamedTuple):
    """An entry of a recording, and what it meets.

    :ivar entry: a table in place of the last part of its checkpoint
    :ivar place: index in the block
    :ivar overlay: has the table before the entry, with all that is assumed;
        None: it is not known
    :ivar ended: what is not only assumed any more, and refusals once nothing
        waits that was assumed before them
    :ivar is_claimed: whether that is claimed, or comes to nothing
    """

    entry: Entry | HostTable
    block: Block
    place: int
    overlay: Overlay | None = None
    ended: Sequence[Assumed] = ()
    is_claimed: bool = True


class Playback:
    """Goes through recordings, and makes a daemon's table again.

    :param has_tables: whether entries come with the table before them
    :ivar overlay: has the table, with all that is assumed; None: before the
        end of the first checkpoint, and once it is taken
    """

    def __init__(self, conn: Connection, has_tables: bool = True) -> None:
        self.overlay: Overlay | None = None
        self.has_tables = has_tables
        self._conn = conn
        self._waiting = collections.deque[Assumed]()

    def take_table(self) -> HostTable:
        """Take the table: what came last is not applied to it any more."""
        assert self.overlay is not None
        overlay, self.overlay, self.has_tables = self.overlay, None, False
        return overlay.table

    def play(self, run: int, first: int, last: int) -> Iterator[Recorded]:
        """Yield the entries of blocks, each before it is applied.

        The blocks begin with a checkpoint, unless there are no tables. The
        table of those that were read before is there for its end.

        :raises NotRecorded: a block cannot be read, or no checkpoint comes
            before an entry
        """
        parts, overlay, reader = list[Part](), None, _Reader(self._conn, run)
        for block, place, read in reader.entries(first, last):
            entry: Entry | HostTable = read
            if isinstance(read, Part) and self.has_tables:
                parts.append(read)
                if read.what == 'end':
                    entry, overlay = _table(parts), self.overlay
                    parts = []
            elif isinstance(read, Asked | PodPlaced) and (
                overlay or not self.has_tables
            ):
                self._waiting.append((read, block))
            yield Recorded(entry, block, place, overlay, *self._ended(entry))
            if not self.has_tables:
                overlay = None
            elif isinstance(entry, HostTable):
                overlay = self.overlay = Overlay(entry)
            elif isinstance(entry, Part):
                continue
            elif overlay is not None:
                _apply(entry, block, overlay)
            else:
                raise errors.NotRecorded(
                    'The history does not begin with a checkpoint'
                )

    def _ended(
        self, entry: Entry | HostTable
    ) -> tuple[Sequence[Assumed], bool]:
        """Return what ends with an entry, and whether it is claimed."""
        count, ended = 0.0, []
        if isinstance(entry, Ended):
            count = entry.claimed if entry.claimed >= 0 else math.inf
        elif isinstance(entry, HostTable):
            count = math.inf
        while self._waiting and self._waiting[0][0].assumes <= count:
            ended.append(self._waiting.popleft())
            count -= ended[-1][0].assumes
        return ended, count < math.inf


def _apply(entry: Entry, block: Block, overlay: Overlay) -> None:
    """Apply an entry as the engine did."""
    if isinstance(entry, Asked):
        if not entry.error:
            assume(overlay, block.request(entry), entry)
    elif isinstance(entry, PodPlaced):
        overlay.assume_pod(entry.row, entry.amounts)
    elif isinstance(entry, Update):
        overlay.table = entry.apply(overlay.table)
    elif isinstance(entry, Release):
        entry.apply(overlay.table)
    elif isinstance(entry, Ended):
        if entry.claimed < 0:
            overlay.forget()
        else:
            overlay.commit(entry.claimed)


class _Checkpoint(msgspec.Struct):
    """The parts of a checkpoint but for instances: what -> name -> data."""

    ids: dict[str, Ints]
    number: dict[str, np.ndarray[Any, Any]]
    coded: dict[str, DictionaryColumn]
    resource: dict[str, ResourceColumns]
    aggregates: dict[str, list[Aggregate]]
    groups: dict[str, list[ServerGroup]]
    shared: dict[str, Ints] = {}


def _table(parts: Iterable[Part]) -> HostTable:
    """Return the table of a checkpoint's parts."""
    data = defaultdict[str, dict[str, Any]](dict)
    instances: dict[str, PlacedInstance] = {}
    for part in parts:
        if part.what == 'instances':
            instances |= ((each.uuid, each) for each in _instances(part.data))
        else:
            data[part.what][part.name] = part.data
    made = msgspec.convert(data, _Checkpoint, dec_hook=_columns)
    table = assemble(
        made.ids[''], made.number, made.coded, made.resource,
        made.aggregates[''], InstanceIndex(instances), made.groups[''],
    )  # fmt: skip
    # What aggregates offer is among the resources already.
    return dataclasses.replace(
        table, resources=made.resource, shared=made.shared
    )


def assume(
    overlay: Overlay, asked: Request, entry: Asked, count: int | None = None
) -> None:
    """Assume the instances of a decision, the first *count*, or all."""
    table = overlay.table
    overlay.assume_many(
        entry.rows[:count],
        asked.resources,
        [
            placed_by(asked, uuid, table.host_at(row), table.node_at(row))
            for uuid, row in entry.placed[:count]
        ],
        asked.instance_group,
    )


class Moment:
    """What a decision was made on.

    :ivar block: that the decision is recorded in
    :ivar entry: the decision
    :ivar request: for which hosts were selected
    :ivar table: as the filters saw it for the first of the instances that were
        left; :meth:`place` goes on to the next ones
    :ivar turn: how many instances are placed
    """

    def __init__(self, overlay: Overlay, entry: Asked, block: Block) -> None:
        self._overlay, self.entry, self.block = overlay, entry, block
        self.request = asked = block.request(entry)
        self.table = table = overlay.table
        stored = table.instances.among(asked.instance_uuids)
        asked.stored_groups = table.groups_of(stored)
        if entry.lent is not None:
            rows, amounts = entry.lent
            overlay.lend(np.array(rows, np.intp), amounts)
        self._start = overlay.begin()
        self.place(entry.earlier)

    @property
    def taken(self) -> int | None:
        """Row of the host that was taken next; None: none was."""
        rows = self.entry.rows
        return rows[self.turn] if self.turn < len(rows) else None

    def place(self, count: int) -> None:
        """Have the first *count* instances placed, in the recorded order."""
        entry, asked, self.turn = self.entry, self.request, count
        self._overlay.forget(self._start)
        self._overlay.end()
        self._start = self._overlay.begin(asked.num_instances > 1)
        if count:
            assume(self._overlay, asked, entry, count)
        left = [*range(len(asked.instance_uuids))]
        for at in entry.order[:count]:
            left.remove(at)
        if left:
            asked.placing = asked.instance_uuids[left[0]]

    def leave(self) -> None:
        """Take back what :meth:`place` did, for the entries that follow."""
        self._overlay.forget(self._start)
        self._overlay.end()
        self._overlay.take_back()


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


def times(conn: Connection, stretch: Stretch) -> dict[int, float]:
    """Return when each block of a stretch was stored."""
    columns = _BLOCKS.c
    query = sa.select(columns.number, columns.created_at).where(
        columns.run == stretch.run,
        columns.number.between(stretch.first, stretch.last),
    )
    return {row.number: row.created_at for row in conn.execute(query)}


def daemon_of(conn: Connection, some: Sequence[Stretch]) -> str:
    """Return the name of the daemon of a run; empty: it cannot be read."""
    reader = _Reader(conn, some[0].run)
    for number in (some[-1].last, some[0].first):
        with contextlib.suppress(errors.NotRecorded):
            return reader.block(number).daemon
    return ''


class _Reader:
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
        try:
            reader = zlib.decompressobj()
            plain = reader.decompress(data, _MOST_TIMES * size + 1)
            if not reader.eof:
                raise zlib.error('it is cut, or too large')
            form = msgspec.msgpack.decode(plain, type=_Head).format
            if form != FORMAT:
                raise errors.NotRecorded(
                    f'{name} is of format {form}, not {FORMAT}'
                )
            block = _decode(plain)
        except (zlib.error, msgspec.MsgspecError) as fault:
            raise errors.NotRecorded(f'{name} is damaged: {fault}') from None
        self._known[number], block.known = block.parts, self._known
        block.number, block.stored_at = number, stored_at
        return block

    def entry(self, block: Block, index: int) -> Entry:
        """Return an entry, once the parts of its request are read.

        :raises NotRecorded: it or a block with a part cannot be read
        """
        try:
            kind, content = block.kinds[index], block.entries[index]
            entry: Entry = _DECODERS[kind](content)
        except (msgspec.MsgspecError, IndexError) as fault:
            name = f'Block {block.number} of run {self._run}'
            raise errors.NotRecorded(f'{name} is damaged: {fault}') from None
        if isinstance(entry, Asked):
            for part in entry.parts:
                other, _ = block.places[part]
                if other not in self._known:
                    self.block(other)
        return entry


def as_of(conn: Connection, run: int, number: int, index: int) -> Moment:
    """Return the moment of a decision.

    :param number: of its block
    :param index: in its block
    :raises NotRecorded: the history lacks it, or cannot be read
    """
    columns = _BLOCKS.c
    first = conn.execute(
        sa.select(sa.func.max(columns.number)).where(
            columns.run == run, columns.number <= number, columns.begins > NO
        )
    ).scalar()
    if first is None:
        raise errors.NotRecorded('The history does not go back as far as that')
    for recorded in Playback(conn).play(run, first, number):
        entry, block, at, overlay, *_ = recorded
        if (block.number, at) == (number, index):
            if not isinstance(entry, Asked) or overlay is None:
                break
            return Moment(overlay, entry, block)
    raise errors.NotRecorded(
        f'Block {number} of run {run} has no such decision'
    )


def requests(
    conn: Connection, places: Collection[tuple[int, int, int]]
) -> dict[tuple[int, int, int], Request]:
    """Return the requests of decisions by their places, as far as they can
    be read.
    """
    found, readers = {}, dict[int, _Reader]()
    by_block = itertools.groupby(sorted(places), operator.itemgetter(0, 1))
    for (run, number), some in by_block:
        reader = readers.setdefault(run, _Reader(conn, run))
        with contextlib.suppress(errors.NotRecorded):
            block = reader.block(number)
            for place in some:
                entry = reader.entry(block, place[2])
                if isinstance(entry, Asked):
                    found[place] = block.request(entry)
    return found


class Checked(NamedTuple):
    """A stretch that was made again.

    :ivar daemon: the name of the daemon whose it is
    :ivar decisions: how many it has
    :ivar fault: why it cannot be read, or what of the checkpoint that follows
        differs; empty: nothing
    """

    stretch: Stretch
    daemon: str
    decisions: int
    fault: str


def check(conn: Connection) -> Iterator[Checked]:
    """Make each stretch again, and compare with the checkpoint after it."""
    playback, end = Playback(conn), (0, 0)
    for stretch in stretches(conn, every=True):
        if not stretch.follows or end != (stretch.run, stretch.first):
            playback = Playback(conn)
        daemon, decisions, fault = '', 0, ''
        try:
            for entry, block, _, before, *_ in playback.play(*stretch[:3]):
                daemon = block.daemon
                decisions += isinstance(entry, Asked)
                if isinstance(entry, HostTable) and before is not None:
                    fault = ', '.join(differing(before.table, entry))
            end = stretch.run, stretch.last + 1
        except errors.NotRecorded as error:
            fault, end = str(error.args[0]), (0, 0)
        yield Checked(stretch, daemon, decisions, fault)


def differing(one: HostTable, other: HostTable) -> list[str]:
    """Return what of two tables differs, by name."""
    first, second = _contents(one), _contents(other)
    names = sorted(first.keys() | second.keys())
    return [name for name in names if first.get(name) != second.get(name)]


def _contents(table: HostTable) -> dict[str, Any]:
    """Return what a table consists of, by name, to be compared."""
    every = np.arange(len(table))
    coded = table.coded.items()
    return {
        'hosts': table.ids.tolist(),
        **{name: column.tobytes() for name, column in table.numbers.items()},
        **{name: column.values_at(every) for name, column in coded},
        **{name: _encode(of) for name, of in table.resources.items()},
        'shared': _encode(table.shared),
        'aggregates': table.topology.aggregates,
        'instances': {placed.uuid: placed for placed in table.instances},
        'groups': table.groups,
    }
