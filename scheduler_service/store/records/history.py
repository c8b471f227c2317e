"""What each daemon saw and decided, in blocks that can be read again.

A block is compressed MessagePack of some entries in their order. The blocks of
a daemon's run are numbered. A *stretch* of them begins with a checkpoint: with
the whole host table. From there any state is made again by what made it in
the daemon: ``Update.apply``, ``Release.apply`` and ``Overlay``.

For readers: :func:`stretches` lists what there is, :func:`entries` yields the
entries of a stretch, and :func:`as_of` returns the :class:`Moment` of a
decision, whose place its row of ``decisions`` names (``run``, ``block``,
``place``). What cannot be read raises ``NotRecorded``, with a sentence.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import operator
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
_DATA = sa.select(_BLOCKS.c.data, _BLOCKS.c.size).where(
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
    :ivar known: number of a block -> its ``parts``, as far as they were read;
        not stored
    """

    format: int
    daemon: str
    version: str
    configuration: str
    parts: list[bytes]
    places: list[tuple[int, int]]
    kinds: bytes
    entries: list[msgspec.Raw]
    known: dict[int, list[bytes]] = {}


class _Head(msgspec.Struct, array_like=True):
    """What every format begins with."""

    format: int


_encode = msgspec.msgpack.Encoder().encode
_NO_FLAVOR = Flavor()
_encode_text = msgspec.json.Encoder().encode
_decode = msgspec.msgpack.Decoder(Block).decode


# Part of a request, as JSON -> number of the block that has it, and index.
Parts = dict[bytes, tuple[int, int]]


class _Index(dict[bytes, int]):
    """Part of a request, as JSON -> index in ``Block.places``.

    What is looked up and is not there gets a place.

    :param number: of the block
    :param known: parts in the stretch
    """

    def __init__(self, number: int, known: Parts) -> None:
        self.parts: list[bytes] = []
        self.places: list[tuple[int, int]] = []
        self._number, self._known = number, known

    def __missing__(self, text: bytes) -> int:
        if len(self._known) >= _MOST_PARTS:
            self._known.clear()
        new = self._number, len(self.parts)
        place = self._known.setdefault(text, new)
        if place == new:
            self.parts.append(text)
        index = self[text] = len(self.places)
        self.places.append(place)
        return index


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
        self._origin = origin
        self._index = _Index(number, {} if known is None else known)
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
            if entry.error and last is not None:
                entry.times = last.times
                is_repeated = entry == last
                entry.times = last.times + 1 if is_repeated else 1
                if is_repeated:
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
        index = self._index
        return (
            index[_encode_text(request.flavor)],
            index[_encode_text(request.image)],
            index[_encode_text((request.project_id, request.user_id))],
            index[_encode_text(rest)],
        )

    def packed(self) -> bytes:
        """Return the block."""
        entries = [*map(msgspec.Raw, self._entries)]
        kinds = bytes(self._kinds)
        requests = self._index.parts, self._index.places
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
    yield Part('ids', '', _array(table.ids))
    for name, column in table.numbers.items():
        yield Part('number', name, _array(column))
    for name, coded in table.coded.items():
        # Aggregates say which of them hosts are in.
        if name != 'aggregate_set':
            values = [
                sorted(value) if isinstance(value, frozenset) else value
                for value in coded.values
            ]
            yield Part('coded', name, [_array(coded.codes), values])
    for name, columns in table.resources.items():
        yield Part('resource', name, _arrays(columns))
    for name, providers in table.shared.items():
        yield Part('shared', name, _array(providers))
    yield Part('aggregates', '', [*table.topology.aggregates.values()])
    yield Part('groups', '', [*table.groups.values()])
    instances = iter(table.instances)
    while some := [*itertools.islice(instances, _INSTANCES)]:
        yield Part('instances', '', _columns(some))
    yield Part('end')


def _columns(some: Sequence[PlacedInstance]) -> list[Any]:
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


def _arrays(columns: ResourceColumns) -> dict[str, tuple[str, bytes]]:
    return {
        field.name: _array(getattr(columns, field.name))
        for field in dataclasses.fields(columns)
    }


def _array(values: np.ndarray[Any, Any]) -> tuple[str, bytes]:
    return values.dtype.str, values.tobytes()


def _from(array: Sequence[Any]) -> Any:
    kind, content = array
    return np.frombuffer(content, kind).copy()


class Replay:
    """A daemon's table, made again entry by entry.

    :ivar overlay: has the table, with all that is assumed; None: before the
        end of the first checkpoint
    """

    def __init__(self) -> None:
        self.overlay: Overlay | None = None
        # Of the checkpoint: what -> name -> data.
        self._parts: dict[str, dict[str, Any]] = defaultdict(dict)
        self._instances: dict[str, PlacedInstance] = {}

    def apply(self, entry: Entry, block: Block) -> HostTable | None:
        """Apply the next entry.

        :return: the table as it was, where a checkpoint ends
        :raises NotRecorded: no checkpoint comes before it
        """
        if isinstance(entry, Part):
            return self._add(entry)
        overlay = self.overlay
        if overlay is None:
            raise errors.NotRecorded(
                'The history does not begin with a checkpoint'
            )
        if isinstance(entry, Asked):
            if not entry.error:
                assume(overlay, request(entry, block), entry)
        elif isinstance(entry, PodPlaced | Ended):
            entry.apply(overlay)
        elif isinstance(entry, Update):
            overlay.table = entry.apply(overlay.table)
        elif isinstance(entry, Release):
            entry.apply(overlay.table)
        return None

    def _add(self, part: Part) -> HostTable | None:
        if part.what == 'instances':
            some = _instances(part.data)
            self._instances.update((placed.uuid, placed) for placed in some)
        elif part.what != 'end':
            self._parts[part.what][part.name] = part.data
        else:
            before = self.overlay
            self.overlay = Overlay(_table(self._parts, self._instances))
            self._parts, self._instances = defaultdict(dict), {}
            if before is not None:
                return before.table
        return None


def _table(
    parts: Mapping[str, Mapping[str, Any]],
    instances: Mapping[str, PlacedInstance],
) -> HostTable:
    """Return the table of a checkpoint's parts."""
    coded = {
        name: DictionaryColumn(
            _from(codes),
            tuple(
                frozenset(value) if isinstance(value, list) else value
                for value in values
            ),
        )
        for name, (codes, values) in parts['coded'].items()
    }
    resources = {
        name: ResourceColumns(
            **{field: _from(data) for field, data in columns.items()}
        )
        for name, columns in parts['resource'].items()
    }
    made = assemble(
        _from(parts['ids']['']),
        {name: _from(data) for name, data in parts['number'].items()},
        coded,
        resources,
        msgspec.convert(parts['aggregates'][''], list[Aggregate]),
        InstanceIndex(instances),
        msgspec.convert(parts['groups'][''], list[ServerGroup]),
    )
    # What aggregates offer is among the resources already.
    shared = {n: _from(data) for n, data in parts.get('shared', {}).items()}
    return dataclasses.replace(made, resources=resources, shared=shared)


def request(entry: Asked, block: Block) -> Request:
    """Return the request of a decision, as hosts were selected for it."""
    flavor, image, caller, rest = (
        msgspec.json.decode(block.known[number][index])
        for number, index in map(block.places.__getitem__, entry.parts)
    )
    rest['project_id'], rest['user_id'] = caller
    rest |= {
        'request_id': entry.request_id,
        'instance_uuids': entry.uuids,
        'flavor': flavor,
        'image': image,
    }
    return msgspec.convert(rest, Request)


def assume(
    overlay: Overlay, asked: Request, entry: Asked, count: int | None = None
) -> None:
    """Assume the instances of a decision, the first *count*, or all."""
    table, uuids = overlay.table, asked.instance_uuids
    overlay.assume_many(
        entry.rows[:count],
        asked.resources,
        [
            placed_by(asked, uuids[at], table.host_at(row), table.node_at(row))
            for at, row in zip(
                entry.order[:count], entry.rows[:count], strict=True
            )
        ],
        asked.instance_group,
    )


class Moment:
    """What a decision was made on.

    :ivar block: that the decision is recorded in
    :ivar entry: the decision
    :ivar request: for which hosts were selected
    :ivar overlay: has the table as the filters saw it for the first of the
        instances that were left; :meth:`place` goes on to the next ones
    """

    def __init__(self, overlay: Overlay, entry: Asked, block: Block) -> None:
        self.overlay, self.entry, self.block = overlay, entry, block
        self.request = asked = request(entry, block)
        table = overlay.table
        stored = table.instances.among(asked.instance_uuids)
        asked.stored_groups = table.groups_of(stored)
        if entry.lent is not None:
            rows, amounts = entry.lent
            overlay.lend(np.array(rows, np.intp), amounts)
        self._start = overlay.begin()
        self.place(entry.earlier)

    @property
    def table(self) -> HostTable:
        return self.overlay.table

    def place(self, count: int) -> None:
        """Have the first *count* instances placed, in the recorded order."""
        entry, asked = self.entry, self.request
        self.overlay.forget(self._start)
        self.overlay.end()
        self._start = self.overlay.begin(asked.num_instances > 1)
        if count:
            assume(self.overlay, asked, entry, count)
        left = [*range(len(asked.instance_uuids))]
        for at in entry.order[:count]:
            left.remove(at)
        if left:
            asked.placing = asked.instance_uuids[left[0]]

    def leave(self) -> None:
        """Take back what :meth:`place` did, for the entries that follow."""
        self.overlay.forget(self._start)
        self.overlay.end()
        self.overlay.take_back()


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


def entries(
    conn: Connection, run: int, first: int, last: int
) -> Iterator[tuple[int, int, Entry, Block]]:
    """Yield the entries of blocks: number, index there, entry and block.

    :raises NotRecorded: a block is missing, damaged, or of another format
    """
    reader = _Reader(conn, run)
    for number in range(first, last + 1):
        block = reader.block(number)
        for index in range(len(block.kinds)):
            entry = reader.entry(number, block, index)
            yield number, index, entry, block


class _Reader:
    """Reads blocks of a run, and their entries."""

    def __init__(self, conn: Connection, run: int) -> None:
        self._conn, self._run = conn, run
        self._known: dict[int, list[bytes]] = {}

    def block(self, number: int) -> Block:
        """Return a block.

        :raises NotRecorded: it is missing, damaged, or of another format
        """
        at = {'of': self._run, 'at': number}
        stored = self._conn.execute(_DATA, at).first()
        name = f'Block {number} of run {self._run}'
        if stored is None:
            raise errors.NotRecorded(f'{name} is missing')
        data, size = stored
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
        return block

    def entry(self, number: int, block: Block, index: int) -> Entry:
        """Return an entry, once the parts of its request are read.

        :raises NotRecorded: it or a block with a part cannot be read
        """
        try:
            kind, content = block.kinds[index], block.entries[index]
            entry: Entry = _DECODERS[kind](content)
        except (msgspec.MsgspecError, IndexError) as fault:
            name = f'Block {number} of run {self._run}'
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
    replay = Replay()
    for at, place, entry, block in entries(conn, run, first, number):
        if (at, place) == (number, index):
            if not isinstance(entry, Asked) or replay.overlay is None:
                break
            return Moment(replay.overlay, entry, block)
        replay.apply(entry, block)
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
                entry = reader.entry(number, block, place[2])
                if isinstance(entry, Asked):
                    found[place] = request(entry, block)
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
    replay, end = Replay(), (0, 0)
    for stretch in stretches(conn, every=True):
        if not stretch.follows or end != (stretch.run, stretch.first):
            replay = Replay()
        daemon, decisions, fault = '', 0, ''
        try:
            for *_, entry, block in entries(conn, *stretch[:3]):
                daemon = block.daemon
                decisions += isinstance(entry, Asked)
                before = replay.apply(entry, block)
                if before is not None and replay.overlay is not None:
                    fault = ', '.join(differing(before, replay.overlay.table))
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
        **{name: _arrays(of) for name, of in table.resources.items()},
        'shared': {n: _array(of) for n, of in table.shared.items()},
        'aggregates': table.topology.aggregates,
        'instances': {placed.uuid: placed for placed in table.instances},
        'groups': table.groups,
    }
