"""Loads all data that decisions depend on, straight into columns.

Rows are read in parts of some ten thousand, and each column of a part becomes
an array at once, so that memory stays low and 100,000 hosts take about a
second. The table equals that of
:func:`~scheduler_service.columns.build.build_table` from documents. Any
thread may load with a connection of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.columns.build import assemble, image_properties
from scheduler_service.columns.dictionary import DictionaryColumn
from scheduler_service.columns.instances import InstanceIndex, PlacedInstance
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.columns.table import HostTable, ResourceColumns
from scheduler_service.model import (
    COUNT_FIELDS,
    ENCODED_FIELDS,
    FLAG_FIELDS,
    NESTED_FIELDS,
    STANDARD_CLASSES,
    Host,
    ServerGroup,
)
from scheduler_service.store import schema
from scheduler_service.store.reading import loading
from scheduler_service.store.reading.loading import MAX_UNIT
from scheduler_service.store.sessions import reading_whole_tables

_PART = 25_000
_HOSTS = schema.hosts.c
_INVENTORIES = schema.inventories.c
_INSTANCES = schema.instances.c
_ENCODED = ('host', 'node', 'uuid', *ENCODED_FIELDS)
_COUNTS = (*COUNT_FIELDS, 'instances_other')
_HOST_COLUMNS = ('id', *_ENCODED, *_COUNTS, *FLAG_FIELDS, 'document')
_SELECT_HOSTS = (
    sa.select(*(_HOSTS[name] for name in _HOST_COLUMNS))
    .where(_HOSTS.id > sa.bindparam('after'))
    .order_by(_HOSTS.id)
    .limit(sa.bindparam('part'))
)


def _of_part(columns: Sequence[Any], *where: Any) -> Any:
    """Return the query of rows that belong to the hosts of a part.

    :param columns: the first is the host's id
    """
    return sa.select(*columns).where(
        columns[0] > sa.bindparam('after'),
        columns[0] <= sa.bindparam('last'),
        *where,
    )


_IS_STANDARD = _INVENTORIES.resource_class.in_(STANDARD_CLASSES)
_STANDARD_FIELDS = ('total', 'used', 'allocation_ratio', 'available_least')
_SELECT_STANDARD = _of_part(
    [_INVENTORIES[name]
     for name in ('host_id', 'resource_class', *_STANDARD_FIELDS)],
    _IS_STANDARD,
)  # fmt: skip
# Other classes, and standard classes with bounds of single allocations: few
# clouds have many.
_WHOLE_FIELDS = (
    'total',
    'reserved',
    'used',
    'min_unit',
    'max_unit',
    'step_size',
)
_SELECT_UNUSUAL = _of_part(
    [_INVENTORIES[name]
     for name in (
         'host_id', 'resource_class', 'allocation_ratio', *_WHOLE_FIELDS
     )],
    sa.not_(_IS_STANDARD)
    | (_INVENTORIES.min_unit != 1)
    | (_INVENTORIES.max_unit != MAX_UNIT)
    | (_INVENTORIES.step_size != 1),
)  # fmt: skip
_SELECT_TRAITS = _of_part(
    [schema.traits.c.host_id, schema.traits.c.name]
).order_by(schema.traits.c.host_id, schema.traits.c.name)
_SELECT_INSTANCES = (
    sa.select(*loading.INSTANCE_COLUMNS)
    .where(_INSTANCES.uuid > sa.bindparam('after'))
    .order_by(_INSTANCES.uuid)
    .limit(sa.bindparam('part'))
)

# (host, node) -> number of present and coming instances.
InstanceCounts = Mapping[tuple[str, str], int]


def load_snapshot(conn: Connection) -> Snapshot:
    """Load all data that decisions depend on.

    The time limit of statements does not apply. The revision is read first;
    newer data is read again when its change is applied, with the same result.
    """
    with _without_gc(), reading_whole_tables(conn):
        revision, lineage = loading.newest_change(conn)
        # Equal names share a string object.
        names: dict[str, str] = {}
        reader = _HostReader(conn, names)
        index, counts = _load_instances(conn, names)
        groups = loading.groups(conn).values()
        table = reader.table(counts, index, groups)
        return Snapshot(table, loading.pools(conn), revision, lineage)


def load_hosts(conn: Connection) -> HostTable:
    """Load all hosts, with the number of their instances."""
    with _without_gc(), reading_whole_tables(conn):
        reader = _HostReader(conn, {})
        counts = loading.instance_counts(conn)
        return reader.table(counts, InstanceIndex({}), ())


@contextlib.contextmanager
def _without_gc() -> Iterator[None]:
    """Stop the cyclic garbage collector while many objects are made.

    Loading leaves no reference cycles, and the collector would scan all rows
    again and again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Encoder:
    """Dictionary-encodes a column part by part."""

    def __init__(self) -> None:
        self.code_of: dict[Any, int] = {}
        self.parts: list[npt.NDArray[np.int32]] = []

    def add(self, values: Sequence[Any]) -> None:
        """Add the values of a part."""
        code_of = self.code_of
        new = [v for v in dict.fromkeys(values) if v not in code_of]
        first = len(code_of)
        code_of.update(zip(new, itertools.count(first)))
        if len(new) == len(values):
            codes = np.arange(first, first + len(values), dtype=np.int32)
        else:
            codes = np.fromiter(
                map(code_of.__getitem__, values), np.int32, len(values)
            )
        self.parts.append(codes)

    def codes(self) -> npt.NDArray[np.int32]:
        """Return the codes of all parts; int32[n]."""
        return np.concatenate(self.parts)

    def column(self) -> DictionaryColumn:
        """Return all parts as a column."""
        return DictionaryColumn(self.codes(), tuple(self.code_of))


class _HostReader:
    """Reads all hosts with inventories and traits, part by part.

    :param names: host name -> the string object to use for it
    """

    def __init__(self, conn: Connection, names: dict[str, str]) -> None:
        self._conn = conn
        self._names = names
        self._ids: list[npt.NDArray[np.int64]] = []
        self._count = 0
        self._encoders = {name: _Encoder() for name in _ENCODED}
        self._documents = _Encoder()
        self._trait_sets = _Encoder()
        self._numbers: dict[str, list[Any]] = defaultdict(list)
        self._standard: dict[tuple[str, str], list[Any]] = defaultdict(list)
        self._unusual: dict[str, list[Any]] = defaultdict(list)
        after = -1
        while True:
            rows = conn.execute(
                _SELECT_HOSTS, {'after': after, 'part': _PART}
            ).all()
            last = rows[-1].id if rows else after
            self._add_hosts(rows)
            self._add_offers({'after': after, 'last': last})
            if len(rows) < _PART:
                return
            after = last

    def _add_hosts(self, rows: Sequence[Any]) -> None:
        columns = _transposed(rows, len(_HOST_COLUMNS))
        values = dict(zip(_HOST_COLUMNS, columns, strict=True))
        share = self._names.setdefault
        for name in ('host', 'node'):
            values[name] = list(map(share, values[name], values[name]))
        self._ids.append(np.array(values['id'], np.int64))
        for name, encoder in self._encoders.items():
            encoder.add(values[name])
        self._documents.add(values['document'])
        for name in _COUNTS:
            self._numbers[name].append(np.array(values[name], np.int64))
        for name, word in FLAG_FIELDS.items():
            matches = map(word.__eq__, values[name])
            self._numbers[word].append(
                np.fromiter(matches, np.bool_, len(rows))
            )

    def _add_offers(self, part: Mapping[str, int]) -> None:
        """Read inventories and traits of the part that was read last.

        :param part: the id before its first host, ``after``, and its last id,
            ``last``
        """
        ids = self._ids[-1]
        for query, add in (
            (_SELECT_STANDARD, self._add_standard),
            (_SELECT_UNUSUAL, self._add_unusual),
            (_SELECT_TRAITS, self._add_traits),
        ):
            rows = self._conn.execute(query, part).all()
            width = len(query.selected_columns)
            add(ids, _transposed(rows, width))
        self._count += len(ids)

    def _add_standard(
        self, ids: npt.NDArray[np.int64], columns: Sequence[Any]
    ) -> None:
        host_ids, names, totals, used, ratios, least = columns
        rows, is_present = _rows_of(ids, host_ids)
        codes = np.fromiter(
            map(STANDARD_CLASSES.index, names), np.int8, len(names)
        )
        figures = {
            'total': (np.array(totals, np.int64), 0),
            'used': (np.array(used, np.int64), 0),
            'ratio': (np.array(ratios, np.float64), np.nan),
            'least': (np.array(least, np.float64), np.nan),
        }
        for code, name in enumerate(STANDARD_CLASSES):
            mine = is_present & (codes == code)
            for figure, (values, absent) in figures.items():
                column = np.full(len(ids), absent, values.dtype)
                column[rows[mine]] = values[mine]
                self._standard[name, figure].append(column)

    def _add_unusual(
        self, ids: npt.NDArray[np.int64], columns: Sequence[Any]
    ) -> None:
        host_ids, names, ratios, *figures = columns
        rows, is_present = _rows_of(ids, host_ids)
        by_class: dict[str, list[int]] = defaultdict(list)
        for at in np.flatnonzero(is_present).tolist():
            by_class[names[at]].append(at)
        ratio = np.array(ratios, np.float64)
        whole = np.array(figures, np.int64)
        for name, places in by_class.items():
            added = rows[places] + self._count, ratio[places], whole[:, places]
            self._unusual[name].append(added)

    def _add_traits(
        self, ids: npt.NDArray[np.int64], columns: Sequence[Any]
    ) -> None:
        host_ids, names = columns
        rows, is_present = _rows_of(ids, host_ids)
        starts = np.searchsorted(
            rows[is_present], np.arange(len(ids) + 1)
        ).tolist()
        kept = [names[at] for at in np.flatnonzero(is_present).tolist()]
        pairs = itertools.pairwise(starts)
        self._trait_sets.add([tuple(kept[a:b]) for a, b in pairs])

    def table(
        self,
        counts: InstanceCounts,
        instances: InstanceIndex,
        groups: Iterable[ServerGroup],
    ) -> HostTable:
        """Return the table of all hosts.

        :param counts: of instances, by host
        """
        numbers = {
            name: np.concatenate(parts)
            for name, parts in self._numbers.items()
        }
        other = numbers.pop('instances_other')
        numbers['num_instances'] = other + self._counted(counts)
        numbers['disk_available_least'] = self._joined('DISK_GB', 'least')
        return assemble(
            np.concatenate(self._ids),
            numbers,
            self._encoded_columns(),
            self._resources(),
            loading.aggregates(self._conn),
            instances,
            groups,
        )

    def _counted(self, counts: InstanceCounts) -> npt.NDArray[np.int64]:
        """Return the number of instances of each host, int64[n]."""
        host, node = self._encoders['host'], self._encoders['node']
        nodes = len(node.code_of)
        keys = host.codes().astype(np.int64) * nodes + node.codes()
        counted = [
            (host.code_of[name] * nodes + node.code_of[node_name], count)
            for (name, node_name), count in counts.items()
            if name in host.code_of and node_name in node.code_of
        ]
        numbers = np.zeros(len(keys), np.int64)
        if counted:
            counted_keys, amounts = np.array(sorted(counted), np.int64).T
            at = np.searchsorted(counted_keys, keys).clip(
                max=len(counted_keys) - 1
            )
            here = counted_keys[at] == keys
            numbers[here] = amounts[at][here]
        return numbers

    def _joined(self, name: str, figure: str) -> npt.NDArray[Any]:
        return np.concatenate(self._standard[name, figure])

    def _encoded_columns(self) -> dict[str, DictionaryColumn]:
        columns = {
            name: encoder.column() for name, encoder in self._encoders.items()
        }
        traits = self._trait_sets.column()
        columns['trait_set'] = DictionaryColumn(
            traits.codes, tuple(frozenset(names) for names in traits.values)
        )
        return {**columns, **_nested_columns(self._documents.column())}

    def _resources(self) -> dict[str, ResourceColumns]:
        """Return capacity and use by resource class."""
        absent = ResourceColumns.absent(self._count)
        resources = {
            name: dataclasses.replace(
                absent,
                total=self._joined(name, 'total'),
                used=self._joined(name, 'used'),
                ratio=self._joined(name, 'ratio'),
            )
            for name in STANDARD_CLASSES
        }
        for name in sorted(self._unusual):
            columns = resources.get(name, absent).map(np.copy)
            for rows, ratio, figures in self._unusual[name]:
                columns.ratio[rows] = ratio
                for field, values in zip(_WHOLE_FIELDS, figures, strict=True):
                    getattr(columns, field)[rows] = values
            resources[name] = columns
        return resources


def _transposed(rows: Sequence[Any], width: int) -> Sequence[Any]:
    """Return rows as *width* columns."""
    return list(zip(*rows, strict=True)) if rows else [()] * width


def _rows_of(
    ids: npt.NDArray[np.int64], host_ids: Sequence[int]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return the row of each host id, and whether the host exists.

    A host may be added or removed while its part is read.

    :param ids: of the part, ascending
    """
    sought = np.array(host_ids, np.int64)
    if not len(ids):
        return np.zeros(len(sought), np.intp), np.zeros(len(sought), np.bool_)
    rows = np.minimum(np.searchsorted(ids, sought), len(ids) - 1)
    return rows, ids[rows] == sought


# The document of a host, with the JSON text of each field.
_NestedDocument: Any = msgspec.defstruct(
    '_NestedDocument',
    [(name, msgspec.Raw, msgspec.Raw(b'')) for name in NESTED_FIELDS],
)


def _nested_columns(
    documents: DictionaryColumn,
) -> dict[str, DictionaryColumn]:
    """Return the columns of the fields that are stored in a host's document.

    Each distinct document is parsed once. The JSON text of its fields is
    used as stored.

    :param documents: JSON text of whole documents
    """
    decode = msgspec.json.Decoder(_NestedDocument).decode
    decoded = [decode(text) for text in documents.values]
    host = Host(host='h')
    columns = {}
    for name in NESTED_FIELDS:
        absent = msgspec.json.encode(getattr(host, name))
        texts = (bytes(getattr(row, name)) or absent for row in decoded)
        by_document = DictionaryColumn.of(
            None if text == b'null' else text for text in texts
        )
        codes = by_document.codes[documents.codes]
        columns[name] = DictionaryColumn(codes, by_document.values)
    return columns


# Of an instance: flavorid, image properties, task state.
_Details = tuple[str | None, frozenset[tuple[str, str]], str | None]


class _InstanceDocument(msgspec.Struct):
    """The fields of an instance's document that the index needs."""

    flavor: dict[str, Any] = {}
    image_meta: dict[str, Any] = {}
    task_state: str | None = None


_decode_instance = msgspec.json.Decoder(_InstanceDocument).decode


def _load_instances(
    conn: Connection, names: dict[Any, Any]
) -> tuple[InstanceIndex, InstanceCounts]:
    """Load all instances.

    :param names: host name -> the string object to use for it
    """
    moves_to = loading.bound_for(conn)
    details = functools.cache(_details)
    share = names.setdefault
    counts: Counter[tuple[str, str]] = Counter()
    placed: dict[str, PlacedInstance] = {}
    after = ''
    while True:
        rows = conn.execute(
            _SELECT_INSTANCES, {'after': after, 'part': _PART}
        ).all()
        for uuid, host, node, state, project, document in rows:
            host, node = share(host, host), share(node, node)
            counts[host, node] += 1
            placed[uuid] = PlacedInstance(
                uuid,
                host,
                node,
                share(project, project),
                *details(document),
                state != 'reported',
                moves_to.get(uuid, ''),
            )
        if len(rows) < _PART:
            break
        after = rows[-1].uuid
    moves = schema.moves.c
    for pair in conn.execute(sa.select(moves.host, moves.node)):
        counts[pair.host, pair.node] += 1
    return InstanceIndex(placed), counts


def _details(document: str) -> _Details:
    decoded = _decode_instance(document)
    flavorid = decoded.flavor.get('flavorid')
    return (
        None if flavorid is None else str(flavorid),
        image_properties(decoded.image_meta),
        decoded.task_state,
    )
