"""Columns made of the documents that hosts report, when first asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from scheduler_service.columns.dictionary import DictionaryColumn
from scheduler_service.columns.table import HostTable


@dataclasses.dataclass(frozen=True, slots=True)
class MetricColumn:
    """One metric: who reports it, bool[n], and its value, float64[n]."""

    there: npt.NDArray[np.bool_]
    value: npt.NDArray[np.float64]


def metric(table: HostTable, name: str) -> MetricColumn:
    """Return the column of a metric; nobody reports an unknown one."""

    def work() -> dict[str, MetricColumn]:
        column = table.coded['metrics']
        reports = [msgspec.json.decode(v or b'[]') for v in column.values]
        names = {one['name'] for report in reports for one in report}
        return {one: _metric(column, reports, one) for one in names}

    found: dict[str, MetricColumn] = table.topology.memoize('metrics', work)
    if name in found:
        return found[name]
    none = np.zeros(len(table), np.bool_)
    return MetricColumn(none, np.zeros(len(table)))


def _metric(
    column: DictionaryColumn, reports: list[Any], name: str
) -> MetricColumn:
    values = np.full(len(reports), np.nan)
    there = np.zeros(len(reports), np.bool_)
    for at, report in enumerate(reports):
        for one in report:
            if one['name'] == name:
                there[at] = True
                values[at] = one.get('value') or 0.0
    return MetricColumn(column.expand(there), column.expand(values))


def decoded(table: HostTable, name: str) -> DictionaryColumn:
    """Return a column of documents as plain values, not as their text.

    Values are compared by identity of their text, so they need not hash.
    """

    def work() -> DictionaryColumn:
        column = table.coded[name]
        values = tuple(
            None if text is None else msgspec.json.decode(text)
            for text in column.values
        )
        return DictionaryColumn(column.codes, values)

    found: DictionaryColumn = table.topology.memoize(('decoded', name), work)
    return found
