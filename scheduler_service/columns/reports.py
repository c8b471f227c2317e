"""Columns of the documents that hosts report, made at their first use."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from scheduler_service.columns.dictionary import DictionaryColumn
from scheduler_service.columns.table import HostTable


@dataclasses.dataclass(frozen=True, slots=True)
class MetricColumn:
    """A metric: which hosts report it, bool[n], and its value, float64[n].

    The value is NaN where a host does not report it, or as no number.
    """

    there: npt.NDArray[np.bool_]
    value: npt.NDArray[np.float64]


def metric(table: HostTable, name: str) -> MetricColumn:
    """Return the column of a metric; no host reports an unknown metric.

    A value that is no number is NaN.
    """

    def work() -> MetricColumn:
        reports = decoded(table, 'metrics')
        reported = [_metric_value(report, name) for report in reports.values]
        there = np.array([value is not None for value in reported], np.bool_)
        values = np.array(reported, np.float64)
        return MetricColumn(reports.expand(there), reports.expand(values))

    return table.topology.memoize(('metric', name), work)


def _metric_value(report: Any, name: str) -> float | None:
    """Return the value of a metric in one host's report, None without it."""
    value = None
    for entry in report if isinstance(report, list) else ():
        if isinstance(entry, dict) and entry.get('name') == name:
            try:
                value = float(entry.get('value') or 0.0)
            except (TypeError, ValueError, OverflowError):
                value = math.nan
    return value


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

    return table.topology.memoize(('decoded', name), work)
