"""JSON queries that compare numbers, evaluated over whole columns."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.support import host_attributes
from scheduler_service.filters.support.json_query import COMPARISONS
from scheduler_service.settings import Settings


class NotNumericError(Exception):
    """The query has other parts than comparisons of numbers."""


class ColumnEvaluator:
    """Evaluates a query for all hosts at once.

    Covers comparisons of numbers, joined by ``and`` and ``or``, and ``not``
    at the top. For any other query it raises :class:`NotNumericError`.
    """

    def __init__(self, table: HostTable, settings: Settings) -> None:
        self._table = table
        self._settings = settings

    def evaluate(self, query: Any, top: bool = True) -> Mask:
        """Return bool[n].

        :param top: whether this is the whole query, not a part of it
        :raises NotNumericError: the query has any other part
        """
        if not isinstance(query, list) or not query:
            raise NotNumericError
        sign, arguments = query[0], query[1:]
        if not isinstance(sign, str) or not arguments:
            raise NotNumericError
        if sign in COMPARISONS or sign == 'in':
            return self._compare(sign, [self._number(a) for a in arguments])
        if sign in ('and', 'or'):
            return self._join(sign, [self._part(a) for a in arguments])
        # A nested "not" gives a list, and any list that is not empty is
        # true; only at the top does it mean that any element is true.
        if sign == 'not' and top:
            return self._join('or', [~self._part(a) for a in arguments])
        raise NotNumericError

    def _part(self, query: Any) -> Mask:
        return self.evaluate(query, top=False)

    def _number(self, argument: Any) -> Any:
        """Return a number, or the column of a variable, [n]."""
        if isinstance(argument, int | float) and not isinstance(
            argument, bool
        ):
            return argument
        if (
            isinstance(argument, str)
            and argument.startswith('$')
            and '.' not in argument
        ):
            column = host_attributes.column(
                self._table, argument[1:], self._settings
            )
            if isinstance(column, np.ndarray):
                return column
        raise NotNumericError

    def _compare(self, sign: str, arguments: list[Any]) -> Mask:
        """Compare the first argument with each of the others."""
        if len(arguments) < 2:
            raise NotNumericError
        compare: Callable[[Any, Any], Any] = COMPARISONS.get(sign, operator.eq)
        masks = [
            np.broadcast_to(compare(arguments[0], other), len(self._table))
            for other in arguments[1:]
        ]
        return self._join('or' if sign == 'in' else 'and', masks)

    def _join(self, sign: str, masks: list[Any]) -> Mask:
        join = np.logical_and if sign == 'and' else np.logical_or
        joined: Mask = join.reduce(masks)
        return joined
