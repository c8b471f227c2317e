"""JsonFilter."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import EACH_TIME, Key
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.filters.support import host_attributes
from scheduler_service.filters.support.json_query import (
    COMPARE,
    Query,
    variables,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings

_MAX_CHARACTERS = 16_384


class _Uncommon(Exception):
    """The query is not made of comparisons of numbers alone."""


class JsonFilter(HostFilter):
    """Passes hosts for which the query of the hint ``query`` is true.

    A JSON list ``[operator, argument, ...]`` with ``=``, ``<``, ``>``,
    ``<=``, ``>=``, ``in``, ``not``, ``and``, ``or``; an argument is a value,
    a query, or a variable such as ``$free_ram_mb`` or ``$stats.key``.
    Arguments that are null, empty or unknown are left out; ``not`` gives a
    list, which is true at the top where any element is.
    """

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Compare columns of numbers; else judge distinct combinations."""
        text = request.hint('query')
        if not text:
            return None
        parsed = _parse(text)
        if not parsed:
            return None
        query = Query(parsed)
        try:
            return _Columns(table, settings).evaluate(parsed, top=True)
        except _Uncommon:
            return _by_combination(table, settings, query)

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return None where there is no query."""
        return EACH_TIME if request.hint('query') else None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give the variables of the query on this host."""
        told = []
        for name in variables(_parse(request.hint('query'))):
            found = host_attributes.column(
                table, name[1:].split('.')[0], settings
            )
            if found is not None:
                coded = host_attributes.as_coded(found)
                told.append(f'{name} is {coded.at(row)}')
        return f'the query is false: {", ".join(told)}'


def _parse(text: Any) -> Any:
    """Parse the hint.

    :raises ValueError: it is no JSON, or too large
    :raises TypeError: it is no text
    """
    if isinstance(text, str) and len(text) > _MAX_CHARACTERS:
        raise ValueError(f'a query has at most {_MAX_CHARACTERS} characters')
    if not isinstance(text, str):
        raise TypeError('a query is one text')
    return json.loads(text)


class _Columns:
    """Evaluates queries that compare numbers, over whole columns."""

    def __init__(self, table: HostTable, settings: Settings) -> None:
        self._table = table
        self._settings = settings

    def evaluate(self, query: Any, top: bool = False) -> Mask:
        """Return bool[n].

        :raises _Uncommon: the query has anything else in it
        """
        if not isinstance(query, list) or not query:
            raise _Uncommon
        sign, args = query[0], query[1:]
        if not isinstance(sign, str) or not args:
            raise _Uncommon
        if sign in COMPARE or sign == 'in':
            return self._compare(sign, [self._number(arg) for arg in args])
        if sign in ('and', 'or'):
            return self._join(sign, [self.evaluate(arg) for arg in args])
        if sign == 'not' and top:
            return self._join('or', [~self.evaluate(arg) for arg in args])
        raise _Uncommon

    def _number(self, arg: Any) -> Any:
        if isinstance(arg, int | float) and not isinstance(arg, bool):
            return arg
        if isinstance(arg, str) and arg.startswith('$') and '.' not in arg:
            found = host_attributes.column(
                self._table, arg[1:], self._settings
            )
            if isinstance(found, np.ndarray):
                return found
        raise _Uncommon

    def _compare(self, sign: str, args: list[Any]) -> Mask:
        if len(args) < 2:
            raise _Uncommon
        check: Callable[[Any, Any], Any] = COMPARE.get(sign, operator.eq)
        found = [
            np.broadcast_to(check(args[0], other), len(self._table))
            for other in args[1:]
        ]
        return self._join('or' if sign == 'in' else 'and', found)

    def _join(self, sign: str, masks: list[Any]) -> Mask:
        join = np.logical_and if sign == 'and' else np.logical_or
        joined: Mask = join.reduce(masks)
        return joined


def _by_combination(
    table: HostTable, settings: Settings, query: Query
) -> Mask:
    """Evaluate once for each combination of values that hosts have."""
    names = sorted({name[1:].split('.')[0] for name in query.variables})
    columns = {
        name: host_attributes.as_coded(found)
        for name in names
        if (found := host_attributes.column(table, name, settings)) is not None
    }
    if not columns:
        return np.full(len(table), query.holds({}), np.bool_)
    codes = np.stack([one.codes for one in columns.values()])
    distinct, which = np.unique(codes, axis=1, return_inverse=True)
    verdicts = np.fromiter(
        (
            query.holds(
                {
                    name: one.values[code]
                    for (name, one), code in zip(
                        columns.items(), combination, strict=True
                    )
                }
            )
            for combination in distinct.T
        ),
        np.bool_,
        distinct.shape[1],
    )
    spread: Mask = verdicts.take(which.ravel())
    return spread
