"""JSON queries evaluated over whole columns.

A comparison of numbers is one operation over a column. Any other comparison
is evaluated once for each distinct value of the column that it reads.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import DictionaryColumn, Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.support import host_attributes
from scheduler_service.filters.support.distinct import mask_of_combinations
from scheduler_service.filters.support.json_query import (
    COMPARISONS,
    Query,
    attribute_of,
)
from scheduler_service.filters.support.unreadable import (
    FAULTS,
    why_unreadable,
)
from scheduler_service.settings import Settings


class NotColumnarError(Exception):
    """The query has a part that is not evaluated by columns."""


class ColumnEvaluator:
    """Evaluates queries for all hosts at once."""

    def __init__(self, table: HostTable, settings: Settings) -> None:
        self._table = table
        self._settings = settings
        # Hosts on whose values some part of the query cannot be evaluated.
        self._unreadable: Mask | None = None

    def evaluate(self, query: Any) -> Mask:
        """Return bool[n]; false where a host's values cannot be read.

        :raises KeyError: it names an operator that does not exist
        :raises TypeError: it compares values of different types, whatever
            the hosts report
        :raises ValueError: the query is too large or nested too deeply
        """
        whole = Query(query)
        try:
            mask = self._evaluate(query, top=True)
        except NotColumnarError:
            mask = self._evaluate_combinations(whole)
        if self._unreadable is not None:
            mask = mask & ~self._unreadable
        return mask

    def _evaluate(self, query: Any, top: bool = False) -> Mask:
        """Return bool[n].

        :param top: whether this is the whole query, not a part of it
        :raises NotColumnarError: the query has any other part
        """
        if query == []:
            return np.ones(len(self._table), np.bool_)
        if not isinstance(query, list) or not isinstance(query[0], str):
            raise NotColumnarError
        sign, arguments = query[0], query[1:]
        if sign in COMPARISONS or sign == 'in':
            return self._compare(query)
        if not arguments:
            raise NotColumnarError
        if sign in ('and', 'or'):
            return _join(sign, [self._evaluate(a) for a in arguments])
        # A nested "not" gives a list, and any list that is not empty is
        # true; only at the top does it mean that any element is true.
        if sign == 'not' and top:
            return _join('or', [~self._evaluate(a) for a in arguments])
        raise NotColumnarError

    def _compare(self, query: list[Any]) -> Mask:
        """Compare the first argument with each of the others."""
        sign, arguments = query[0], query[1:]
        if any(isinstance(argument, list) for argument in arguments):
            raise NotColumnarError
        numbers = [self._number(argument) for argument in arguments]
        if len(numbers) < 2 or any(number is None for number in numbers):
            return self._evaluate_combinations(Query(query))
        compare: Callable[[Any, Any], Any] = COMPARISONS.get(sign, operator.eq)
        masks = [compare(numbers[0], other) for other in numbers[1:]]
        mask = _join('or' if sign == 'in' else 'and', masks)
        if np.ndim(mask):
            return mask
        return np.full(len(self._table), mask, np.bool_)

    def _number(self, argument: Any) -> Any:
        """Return a number, the numbers of a variable, [n], or None."""
        if isinstance(argument, int | float):
            return None if isinstance(argument, bool) else argument
        if (
            isinstance(argument, str)
            and argument.startswith('$')
            and '.' not in argument
        ):
            column = host_attributes.column(
                self._table, argument[1:], self._settings
            )
            return column if isinstance(column, np.ndarray) else None
        return None

    def _evaluate_combinations(self, query: Query) -> Mask:
        """Return bool[n], evaluated once per combination of values in use."""
        columns: dict[str, DictionaryColumn] = {}
        for name in sorted({attribute_of(name) for name in query.variables}):
            column = host_attributes.dictionary_column(
                self._table, name, self._settings
            )
            if column is not None:
                columns[name] = column
        if not columns:
            return np.full(len(self._table), query.matches({}), np.bool_)
        free_form = any(map(host_attributes.is_free_form, columns))
        every = list(columns.values())
        faulty = False

        def matches(*values: Any) -> bool:
            nonlocal faulty
            try:
                return query.matches(dict(zip(columns, values, strict=True)))
            except FAULTS:
                if not free_form:
                    raise
                faulty = True
                return False

        def fails(*values: Any) -> bool:
            found = dict(zip(columns, values, strict=True))
            return bool(why_unreadable(query.matches, 'query', found))

        mask = _mask_of(every, matches)
        if faulty:
            self._add_unreadable(_mask_of(every, fails))
        return mask

    def _add_unreadable(self, mask: Mask) -> None:
        if self._unreadable is not None:
            mask = mask | self._unreadable
        self._unreadable = mask


def _mask_of(
    columns: Sequence[DictionaryColumn], predicate: Callable[..., bool]
) -> Mask:
    """Return the rows whose values satisfy a predicate, bool[n]."""
    if len(columns) == 1:
        return columns[0].mask_where(predicate)
    return mask_of_combinations(columns, predicate)


def _join(sign: str, masks: Sequence[Any]) -> Mask:
    join = operator.and_ if sign == 'and' else operator.or_
    joined: Mask = functools.reduce(join, masks)
    return joined
