"""The blocks that daemons record in: what is in them, and their bytes.

A block is compressed MessagePack of some entries in their order: decisions,
pods, and what else is done to the host table. A checkpoint is the whole table,
as entries of blocks of its own.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from scheduler_service import errors
from scheduler_service.columns import (
    DictionaryColumn,
    HostTable,
    InstanceIndex,
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


class RecordedDecision(msgspec.Struct, array_like=True, gc=False):
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


class Section(msgspec.Struct, array_like=True):
    """A section of a checkpoint.

    :ivar what: ids, number, coded, resource, shared, aggregates, groups or
        instances; end: it was the last one
    :ivar name: of the column
    :ivar data: arrays as (type, bytes)
    """

    kind: ClassVar[int] = 5

    what: str
    name: str = ''
    data: Any = None


Entry = (
    RecordedDecision | PodPlaced | Ended | Update | Release | Section | Changed
)
_KINDS = (
    RecordedDecision,
    PodPlaced,
    Ended,
    Update,
    Release,
    Section,
    Changed,
)
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
    :ivar name: for errors; this and what follows is not stored with it
    :ivar number: of the block in its run
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
    name: str = ''
    number: int = 0
    stored_at: float = 0.0
    known: dict[int, list[bytes]] = {}

    def entry(self, index: int) -> Entry:
        """Return an entry.

        :raises NotRecorded: it is damaged
        """
        try:
            kind, content = self.kinds[index], self.entries[index]
            entry: Entry = _DECODERS[kind](content)
        except (msgspec.MsgspecError, IndexError) as fault:
            raise errors.NotRecorded(
                f'{self.name} is damaged: {fault}'
            ) from None
        return entry

    def request(self, decision: RecordedDecision) -> Request:
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
    raise TypeError(f'{type(columns)} cannot be recorded')


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


encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_NO_FLAVOR = Flavor()
_encode_text = msgspec.json.Encoder().encode
_decode = msgspec.msgpack.Decoder(Block).decode


def unpacked(data: bytes, size: int, name: str) -> Block:
    """Return a block from its bytes.

    :param size: of the bytes, as it is stored beside them
    :param name: of the block, for errors
    :raises NotRecorded: it is damaged, or of another format
    """
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
    block.name = name
    return block


# Section of a request, as JSON -> number of the block that has it, and index.
PartPlaces = dict[bytes, tuple[int, int]]


class Packer:
    """Makes a block of entries.

    :param origin: name, release and fingerprint of the configuration
    :param number: of the block
    :param known: parts of requests in the stretch
    :ivar decided: each decision with its index in the block
    :ivar size: of what was added, in bytes
    """

    def __init__(
        self,
        origin: tuple[str, str, str],
        number: int = 0,
        known: PartPlaces | None = None,
    ) -> None:
        self.decided: list[tuple[Decided, int]] = []
        self.size = 0
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
        self._refused: RecordedDecision | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Any) -> int:
        """Add an entry; return its index in the block."""
        last, self._refused, made = self._refused, None, entry
        if isinstance(made, Decided):
            entry = self._recorded(made)
            if entry.error:
                self._refused = entry
                if last and entry == msgspec.structs.replace(last, times=1):
                    entry.times = last.times + 1
                    self._kinds.pop()
                    self._entries.pop()
        self._kinds.append(entry.kind)
        self._entries.append(encode(entry))
        self.size += len(self._entries[-1])
        index = len(self._entries) - 1
        if isinstance(made, Decided):
            self.decided.append((made, index))
        return index

    def _recorded(self, made: Decided) -> RecordedDecision:
        request, placed = made.request, made.placed
        order = [0] if placed else []
        if len(request.instance_uuids) > 1:
            place = request.instance_uuids.index
            order = [place(made.uuid) for made in placed]
        best = made.reasons.get('finalists') or {}
        lent = made.lent
        return RecordedDecision(
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
        """Return the parts of a request, as a recorded decision has them."""
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
        plain = encode(block)
        data = zlib.compress(plain, 1)
        fits = len(plain) <= _MOST_TIMES * len(data)
        return data if fits else zlib.compress(plain, 0)


def checkpoint_blocks(
    table: HostTable, origin: tuple[str, str, str]
) -> Iterator[bytes]:
    """Yield blocks of a checkpoint; the engine goes on in between."""
    packer = Packer(origin)
    for section in _sections(table):
        packer.add(section)
        if packer.size >= _BLOCK_BYTES:
            yield packer.packed()
            packer = Packer(origin)
    yield packer.packed()


def _sections(table: HostTable) -> Iterator[Section]:
    coded = {**table.coded}
    # Aggregates say which of them hosts are in.
    coded.pop('aggregate_set', None)
    yield Section('ids', '', table.ids)
    for what, columns in (
        ('number', table.numbers),
        ('coded', coded),
        ('resource', table.resources),
        ('shared', table.shared),
    ):
        for name, column in columns.items():
            yield Section(what, name, column)
    yield Section('aggregates', '', [*table.topology.aggregates.values()])
    yield Section('groups', '', [*table.groups.values()])
    instances = iter(table.instances)
    while some := [*itertools.islice(instances, _INSTANCES)]:
        yield Section('instances', '', _by_field(some))
    yield Section('end')


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


class _Checkpoint(msgspec.Struct):
    """The sections of a checkpoint but for instances: what -> name -> data."""

    ids: dict[str, Ints]
    number: dict[str, np.ndarray[Any, Any]]
    coded: dict[str, DictionaryColumn]
    resource: dict[str, ResourceColumns]
    aggregates: dict[str, list[Aggregate]]
    groups: dict[str, list[ServerGroup]]
    shared: dict[str, Ints] = {}


def checkpoint_table(sections: Iterable[Section]) -> HostTable:
    """Return the table of a checkpoint's sections."""
    data = defaultdict[str, dict[str, Any]](dict)
    instances: dict[str, PlacedInstance] = {}
    for section in sections:
        if section.what == 'instances':
            instances |= (
                (each.uuid, each) for each in _instances(section.data)
            )
        else:
            data[section.what][section.name] = section.data
    made = msgspec.convert(data, _Checkpoint, dec_hook=_columns)
    table = assemble(
        made.ids[''], made.number, made.coded, made.resource,
        made.aggregates[''], InstanceIndex(instances), made.groups[''],
    )  # fmt: skip
    # What aggregates offer is among the resources already.
    return dataclasses.replace(
        table, resources=made.resource, shared=made.shared
    )
