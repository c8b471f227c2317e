"""Reads all hosts straight into columns, without a document for each host.

A :class:`HostReader` belongs to the thread that loads. Rows are read in parts
of some ten thousand hosts, and each column of a part becomes an array at once,
so that memory stays low and 100,000 hosts take about a second.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.columns.dictionary import DictionaryColumn
from scheduler_service.columns.table import ResourceColumns
from scheduler_service.model import NESTED_FIELDS, STANDARD_CLASSES, Host
from scheduler_service.store import schema
from scheduler_service.store.reading.instance_loading import (
    InstanceCounts,
    shared,
)
from scheduler_service.store.reading.loading import MAX_UNIT

_PART = 25_000
_HOSTS = schema.hosts.c
_INVENTORIES = schema.inventories.c
_ENCODED = (
    'host',
    'node',
    'uuid',
    'hypervisor_type',
    'hypervisor_version',
    'host_ip',
    'cell_uuid',
    'disabled_reason',
)
_NUMBERS = ('num_io_ops', 'failed_builds', 'instances_other')
# Columns of two values, of which the table keeps whether it is this one.
_STATES = {'status': 'enabled', 'state': 'up'}
_HOST_COLUMNS = ('id', *_ENCODED, *_NUMBERS, *_STATES, 'document')
_SELECT_HOSTS = (
    sa.select(*(_HOSTS[name] for name in _HOST_COLUMNS))
    .where(_HOSTS.id > sa.bindparam('after'))
    .order_by(_HOSTS.id)
    .limit(sa.bindparam('part'))
)
_SELECT_STANDARD = sa.select(
    _INVENTORIES.host_id,
    _INVENTORIES.resource_class,
    _INVENTORIES.total,
    _INVENTORIES.used,
    _INVENTORIES.allocation_ratio,
    _INVENTORIES.available_least,
).where(
    _INVENTORIES.host_id > sa.bindparam('after'),
    _INVENTORIES.host_id <= sa.bindparam('last'),
    _INVENTORIES.resource_class.in_(STANDARD_CLASSES),
)
_CUSTOM_FIELDS = (
    'total',
    'reserved',
    'used',
    'min_unit',
    'max_unit',
    'step_size',
)
_SELECT_CUSTOM = sa.select(
    _INVENTORIES.host_id,
    _INVENTORIES.resource_class,
    _INVENTORIES.allocation_ratio,
    *(_INVENTORIES[name] for name in _CUSTOM_FIELDS),
).where(
    _INVENTORIES.host_id > sa.bindparam('after'),
    _INVENTORIES.host_id <= sa.bindparam('last'),
    _INVENTORIES.resource_class.not_in(STANDARD_CLASSES),
)
_UNIT_FIELDS = ('min_unit', 'max_unit', 'step_size')
# Few clouds limit what one instance may take of them.
_SELECT_UNITS = sa.select(
    _INVENTORIES.host_id,
    _INVENTORIES.resource_class,
    *(_INVENTORIES[name] for name in _UNIT_FIELDS),
).where(
    _INVENTORIES.host_id > sa.bindparam('after'),
    _INVENTORIES.host_id <= sa.bindparam('last'),
    _INVENTORIES.resource_class.in_(STANDARD_CLASSES),
    (_INVENTORIES.min_unit != 1)
    | (_INVENTORIES.max_unit != MAX_UNIT)
    | (_INVENTORIES.step_size != 1),
)
_SELECT_TRAITS = (
    sa.select(schema.traits.c.host_id, schema.traits.c.name)
    .where(
        schema.traits.c.host_id > sa.bindparam('after'),
        schema.traits.c.host_id <= sa.bindparam('last'),
    )
    .order_by(schema.traits.c.host_id, schema.traits.c.name)
)


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
            found = map(code_of.__getitem__, values)
            codes = np.fromiter(found, np.int32, len(values))
        self.parts.append(codes)

    def codes(self) -> npt.NDArray[np.int32]:
        """Return the codes of all parts; int32[n]."""
        return np.concatenate(self.parts)

    def column(self) -> DictionaryColumn:
        """Return all parts as a column."""
        return DictionaryColumn(self.codes(), tuple(self.code_of))


class HostReader:
    """Reads hosts with what they offer, part by part.

    :ivar ids: int64 arrays of host ids, one for each part
    :param names: host name -> the one string object to use for it
    """

    def __init__(self, conn: Connection, names: dict[str, str]) -> None:
        self.ids: list[npt.NDArray[np.int64]] = []
        self._conn = conn
        self._names = names
        self._count = 0
        self._encoders = {name: _Encoder() for name in _ENCODED}
        self._documents = _Encoder()
        self._trait_sets = _Encoder()
        self._numbers: dict[str, list[Any]] = defaultdict(list)
        self._standard: dict[tuple[str, str], list[Any]] = defaultdict(list)
        self._custom: dict[str, list[Any]] = defaultdict(list)
        self._units: dict[str, list[Any]] = defaultdict(list)

    def read_all(self) -> None:
        """Read all parts; at least one, which may be empty."""
        after = -1
        while True:
            rows = self._conn.execute(
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
        for name in ('host', 'node'):
            values[name] = shared(self._names, values[name])
        self.ids.append(np.array(values['id'], np.int64))
        for name, encoder in self._encoders.items():
            encoder.add(values[name])
        self._documents.add(values['document'])
        for name in _NUMBERS:
            self._numbers[name].append(np.array(values[name], np.int64))
        for name, wanted in _STATES.items():
            matches = map(wanted.__eq__, values[name])
            self._numbers[name].append(
                np.fromiter(matches, np.bool_, len(rows))
            )

    def _add_offers(self, wanted: Mapping[str, int]) -> None:
        """Read inventories and traits of the part that was read last.

        :param wanted: ids ``after`` which hosts are, and the ``last`` one
        """
        ids = self.ids[-1]
        standard = self._conn.execute(_SELECT_STANDARD, wanted).all()
        self._add_standard(ids, _transposed(standard, 6))
        units = self._conn.execute(_SELECT_UNITS, wanted).all()
        self._add_units(ids, _transposed(units, 2 + len(_UNIT_FIELDS)))
        custom = self._conn.execute(_SELECT_CUSTOM, wanted).all()
        self._add_custom(ids, _transposed(custom, 3 + len(_CUSTOM_FIELDS)))
        traits = self._conn.execute(_SELECT_TRAITS, wanted).all()
        self._add_traits(ids, _transposed(traits, 2))
        self._count += len(ids)

    def _add_standard(
        self, ids: npt.NDArray[np.int64], columns: Sequence[Any]
    ) -> None:
        host_ids, names, totals, used, ratios, least = columns
        rows, known = _rows_of(ids, host_ids)
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
            mine = known & (codes == code)
            for figure, (values, absent) in figures.items():
                column = np.full(len(ids), absent, values.dtype)
                column[rows[mine]] = values[mine]
                self._standard[name, figure].append(column)

    def _add_units(
        self, ids: npt.NDArray[np.int64], columns: Sequence[Any]
    ) -> None:
        host_ids, names, *figures = columns
        rows, known = _rows_of(ids, host_ids)
        whole = np.array(figures, np.int64)
        for name in set(names):
            mine = known & (np.array(names, object) == name)
            self._units[name].append(
                (rows[mine] + self._count, whole[:, mine])
            )

    def _add_custom(
        self, ids: npt.NDArray[np.int64], columns: Sequence[Any]
    ) -> None:
        host_ids, names, ratios, *figures = columns
        rows, known = _rows_of(ids, host_ids)
        by_class: dict[str, list[int]] = defaultdict(list)
        for at in np.flatnonzero(known).tolist():
            by_class[names[at]].append(at)
        ratio = np.array(ratios, np.float64)
        whole = np.array(figures, np.int64)
        for name, places in by_class.items():
            self._custom[name].append(
                (
                    rows[places] + self._count,
                    ratio[places],
                    whole[:, places],
                )
            )

    def _add_traits(
        self, ids: npt.NDArray[np.int64], columns: Sequence[Any]
    ) -> None:
        host_ids, names = columns
        rows, known = _rows_of(ids, host_ids)
        starts = np.searchsorted(rows[known], np.arange(len(ids) + 1)).tolist()
        kept = [names[at] for at in np.flatnonzero(known).tolist()]
        self._trait_sets.add(
            [
                tuple(kept[start:end])
                for start, end in itertools.pairwise(starts)
            ]
        )

    def numbers(self, counts: InstanceCounts) -> dict[str, npt.NDArray[Any]]:
        """Return the plain columns of the table.

        :param counts: (host, node) -> how many instances it has or will get
        """
        joined = {
            name: np.concatenate(parts)
            for name, parts in self._numbers.items()
        }
        return {
            'enabled': joined['status'],
            'up': joined['state'],
            'disk_available_least': self._joined('DISK_GB', 'least'),
            'num_io_ops': joined['num_io_ops'],
            'failed_builds': joined['failed_builds'],
            'num_instances': joined['instances_other'] + self._counted(counts),
        }

    def _counted(self, counts: InstanceCounts) -> npt.NDArray[np.int64]:
        """Return how many instances each host has; int64[n]."""
        host, node = self._encoders['host'], self._encoders['node']
        nodes = len(node.code_of)
        keys = host.codes().astype(np.int64) * nodes + node.codes()
        known = [
            (host.code_of[name] * nodes + node.code_of[node_name], count)
            for (name, node_name), count in counts.items()
            if name in host.code_of and node_name in node.code_of
        ]
        found = np.zeros(len(keys), np.int64)
        if known:
            wanted, amounts = np.array(sorted(known), np.int64).T
            at = np.searchsorted(wanted, keys).clip(max=len(wanted) - 1)
            here = wanted[at] == keys
            found[here] = amounts[at][here]
        return found

    def _joined(self, name: str, figure: str) -> npt.NDArray[Any]:
        return np.concatenate(self._standard[name, figure])

    def encoded_columns(self) -> dict[str, DictionaryColumn]:
        """Return the dictionary-encoded columns of the table."""
        columns = {
            name: encoder.column() for name, encoder in self._encoders.items()
        }
        traits = self._trait_sets.column()
        columns['trait_set'] = DictionaryColumn(
            traits.codes, tuple(frozenset(names) for names in traits.values)
        )
        return {**columns, **_nested_columns(self._documents.column())}

    def resources(self) -> dict[str, ResourceColumns]:
        """Return capacity and use by resource class."""
        absent = ResourceColumns.absent(self._count)
        found = {}
        for name in STANDARD_CLASSES:
            figures = {
                figure: self._joined(name, figure)
                for figure in ('total', 'used', 'ratio')
            }
            if self._units[name]:
                for field in _UNIT_FIELDS:
                    figures[field] = getattr(absent, field).copy()
            for rows, limits in self._units[name]:
                for field, values in zip(_UNIT_FIELDS, limits, strict=True):
                    figures[field][rows] = values
            found[name] = dataclasses.replace(absent, **figures)
        for name in sorted(self._custom):
            columns = absent.map(np.copy)
            for rows, ratio, figures in self._custom[name]:
                columns.ratio[rows] = ratio
                for field, values in zip(_CUSTOM_FIELDS, figures, strict=True):
                    getattr(columns, field)[rows] = values
            found[name] = columns
        return found


def _transposed(rows: Sequence[Any], width: int) -> Sequence[Any]:
    """Return rows as columns, of which there are *width*."""
    return list(zip(*rows, strict=True)) if rows else [()] * width


def _rows_of(
    ids: npt.NDArray[np.int64], host_ids: Sequence[int]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return the row of each host id, and whether there is such a host.

    A host may be added or removed while its part is read.

    :param ids: of the part, ascending
    """
    wanted = np.array(host_ids, np.int64)
    if not len(ids):
        return np.zeros(len(wanted), np.intp), np.zeros(len(wanted), np.bool_)
    rows = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
    return rows, ids[rows] == wanted


# What is stored as one document, as the JSON text of each field.
_NestedDocument: Any = msgspec.defstruct(
    '_NestedDocument',
    [(name, msgspec.Raw, msgspec.Raw(b'')) for name in NESTED_FIELDS],
)


def _nested_columns(
    documents: DictionaryColumn,
) -> dict[str, DictionaryColumn]:
    """Return the columns of the fields that hosts store in one document.

    Each distinct document is parsed once. The JSON text of its fields is
    used as it is stored.

    :param documents: JSON text of whole documents
    """
    decode = msgspec.json.Decoder(_NestedDocument).decode
    decoded = [decode(text) for text in documents.values]
    host = Host(host='h')
    found = {}
    for name in NESTED_FIELDS:
        default = getattr(host, name)
        absent = None if default is None else msgspec.json.encode(default)
        texts = [bytes(getattr(one, name)) or absent for one in decoded]
        by_document = DictionaryColumn.of(
            None if text == b'null' else text for text in texts
        )
        codes = by_document.codes[documents.codes]
        found[name] = DictionaryColumn(codes, by_document.values)
    return found
