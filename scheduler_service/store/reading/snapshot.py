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
from scheduler_service.columns.table import (
    HostTable,
    ResourceColumns,
    Snapshot,
)
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
from scheduler_service.store.sessions import limited

_PART = 25_000
_HOSTS = schema.hosts.c
_INVENTORIES = schema.inventories.c
_INSTANCES = schema.instances.c
_ENCODED = ('host', 'node', 'uuid', *ENCODED_FIELDS)
_HOST_COLUMNS = (
    'id',
    *_ENCODED,
    *COUNT_FIELDS,
    *FLAG_FIELDS,
    'instances_other',
    'document',
)
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
_RATIO = _INVENTORIES.allocation_ratio.label('ratio')
_SELECT_STANDARD = _of_part(
    [_INVENTORIES.host_id, _INVENTORIES.resource_class, _INVENTORIES.total,
     _INVENTORIES.used, _RATIO, _INVENTORIES.available_least],
    _IS_STANDARD,
)  # fmt: skip
# Other classes, and standard classes with bounds of single allocations: few
# clouds have many.
_SELECT_UNUSUAL = _of_part(
    [_INVENTORIES.host_id, _INVENTORIES.resource_class, _INVENTORIES.total,
     _INVENTORIES.reserved, _INVENTORIES.used, _RATIO, _INVENTORIES.min_unit,
     _INVENTORIES.max_unit, _INVENTORIES.step_size],
    sa.not_(_IS_STANDARD)
    | (_INVENTORIES.min_unit != 1)
    | (_INVENTORIES.max_unit != MAX_UNIT)
    | (_INVENTORIES.step_size != 1),
    schema.IS_OFFERED,
)  # fmt: skip
_FLOATS = ('ratio', 'available_least')
_RESOURCE_FIELDS = {f.name for f in dataclasses.fields(ResourceColumns)}
_SELECT_TRAITS = _of_part(
    [schema.traits.c.host_id, schema.traits.c.name]
).order_by(schema.traits.c.host_id, schema.traits.c.name)
_SELECT_INSTANCES = (
    sa.select(*loading.INSTANCE_COLUMNS)
    .where(_INSTANCES.uuid > sa.bindparam('after'), loading.IS_INSTANCE)
    .order_by(_INSTANCES.uuid)
    .limit(sa.bindparam('part'))
)


def load_snapshot(conn: Connection) -> Snapshot:
    """Load all data that decisions depend on.

    The time limit of statements does not apply. The revision is read first;
    newer data is read again when its change is applied, with the same result.
    """
    with _without_gc(), limited(conn, 0, whole_tables=True):
        revision, lineage = loading.newest_change(conn)
        # Equal names share a string object.
        names: dict[str, str] = {}
        index, counts = _load_instances(conn, names)
        groups = loading.groups(conn).values()
        table = _HostReader(conn, names, counts).table(index, groups)
        return Snapshot(table, loading.pools(conn), revision, lineage)


def load_hosts(conn: Connection) -> HostTable:
    """Load all hosts, with the number of their instances."""
    with _without_gc(), limited(conn, 0, whole_tables=True):
        counts = loading.instance_counts(conn)
        return _HostReader(conn, {}, counts).table(InstanceIndex({}), ())


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

    def column(self) -> DictionaryColumn:
        return DictionaryColumn(
            np.concatenate(self.parts), tuple(self.code_of)
        )


class _HostReader:
    """Reads all hosts with inventories and traits, part by part.

    :param names: host name -> the string object to use for it
    :param counts: of instances, by host
    """

    def __init__(
        self,
        conn: Connection,
        names: dict[str, str],
        counts: Mapping[tuple[str, str], int],
    ) -> None:
        self._conn = conn
        self._names = names
        self._counts = counts
        self._ids: list[npt.NDArray[np.int64]] = []
        self._count = 0
        self._encoders = {name: _Encoder() for name in _ENCODED}
        self._documents = _Encoder()
        self._trait_sets = _Encoder()
        self._numbers: dict[str, list[Any]] = defaultdict(list)
        # Resource class -> (rows, the values of some fields there) by part.
        self._offered: dict[str, list[Any]] = defaultdict(list)
        after, count = -1, _PART
        while count == _PART:
            values = self._read(_SELECT_HOSTS, after=after, part=_PART)
            self._add_hosts(values)
            count = len(values['id'])
            last = values['id'][-1] if count else after
            for query in (_SELECT_STANDARD, _SELECT_UNUSUAL):
                self._add_inventories(
                    self._read(query, after=after, last=last)
                )
            self._add_traits(
                self._read(_SELECT_TRAITS, after=after, last=last)
            )
            self._count += count
            after = last

    def _read(self, query: Any, **parameters: int) -> dict[str, Sequence[Any]]:
        """Return the rows of a query as columns by name."""
        rows = self._conn.execute(query, parameters).all()
        names = query.selected_columns.keys()
        columns = zip(*rows, strict=True) if rows else [()] * len(names)
        return dict(zip(names, columns, strict=True))

    def _add_hosts(self, values: dict[str, Sequence[Any]]) -> None:
        share = self._names.setdefault
        for name in ('host', 'node'):
            values[name] = list(map(share, values[name], values[name]))
        count = len(values['id'])
        self._ids.append(np.array(values['id'], np.int64))
        for name, encoder in self._encoders.items():
            encoder.add(values[name])
        self._documents.add(values['document'])
        for name in COUNT_FIELDS:
            self._numbers[name].append(np.array(values[name], np.int64))
        for name, word in FLAG_FIELDS.items():
            matches = map(word.__eq__, values[name])
            self._numbers[word].append(np.fromiter(matches, np.bool_, count))
        nodes = zip(values['host'], values['node'], strict=True)
        here = map(self._counts.get, nodes, itertools.repeat(0))
        self._numbers['num_instances'].append(
            np.array(values['instances_other'], np.int64)
            + np.fromiter(here, np.int64, count)
        )

    def _add_inventories(self, values: dict[str, Sequence[Any]]) -> None:
        rows, is_present = self._rows_of(values.pop('host_id'))
        names = values.pop('resource_class')
        figures = {
            field: np.array(column, float if field in _FLOATS else np.int64)
            for field, column in values.items()
        }
        code_of = {name: n for n, name in enumerate(dict.fromkeys(names))}
        codes = np.fromiter(
            map(code_of.__getitem__, names), np.int64, len(names)
        )
        for name, code in code_of.items():
            mine = np.flatnonzero(is_present & (codes == code))
            of_class = {field: all_[mine] for field, all_ in figures.items()}
            if mine.size:
                self._offered[name].append(
                    (rows[mine] + self._count, of_class)
                )

    def _add_traits(self, values: dict[str, Sequence[Any]]) -> None:
        rows, is_present = self._rows_of(values['host_id'])
        starts = np.searchsorted(
            rows[is_present], np.arange(len(self._ids[-1]) + 1)
        ).tolist()
        names = values['name']
        kept = [names[at] for at in np.flatnonzero(is_present).tolist()]
        pairs = itertools.pairwise(starts)
        self._trait_sets.add([tuple(kept[a:b]) for a, b in pairs])

    def _rows_of(
        self, host_ids: Sequence[int]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """Return the row of each host id in the part that was read last.

        A host may be added or removed while its part is read: also return
        whether the host exists.
        """
        ids, sought = self._ids[-1], np.array(host_ids, np.int64)
        if not len(ids):
            none = np.zeros(len(sought), np.bool_)
            return none.astype(np.intp), none
        rows = np.minimum(np.searchsorted(ids, sought), len(ids) - 1)
        return rows, ids[rows] == sought

    def table(
        self, instances: InstanceIndex, groups: Iterable[ServerGroup]
    ) -> HostTable:
        numbers = {
            name: np.concatenate(parts)
            for name, parts in self._numbers.items()
        }
        least = numbers['disk_available_least'] = np.full(self._count, np.nan)
        for rows, figures in self._offered['DISK_GB']:
            if 'available_least' in figures:
                least[rows] = figures['available_least']
        return assemble(
            np.concatenate(self._ids),
            numbers,
            self._encoded_columns(),
            self._resources(),
            loading.aggregates(self._conn),
            instances,
            groups,
        )

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
        absent = ResourceColumns.absent(self._count)
        # Each host has the standard classes.
        standard = dataclasses.replace(absent, total=absent.reserved)
        resources = dict.fromkeys(STANDARD_CLASSES, standard)
        resources |= dict.fromkeys(
            sorted(self._offered.keys() - resources), absent
        )
        for name, shared in resources.items():
            columns: dict[str, Any] = {}
            for rows, figures in self._offered[name]:
                for field in figures.keys() & _RESOURCE_FIELDS:
                    if field not in columns:
                        columns[field] = getattr(shared, field).copy()
                    columns[field][rows] = figures[field]
            resources[name] = dataclasses.replace(shared, **columns)
        return resources


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
) -> tuple[InstanceIndex, Mapping[tuple[str, str], int]]:
    """Load all instances, and their number by (host, node), moves included.

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
