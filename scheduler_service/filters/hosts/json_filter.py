"""The host filter JsonFilter."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import (
    DictionaryColumn,
    Mask,
    combinations,
)
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import EACH_TIME, Key
from scheduler_service.filters import host_attributes
from scheduler_service.filters.base import HostFilter, why_unreadable
from scheduler_service.model import Request
from scheduler_service.model.requirements.specs import FAULTS, reading
from scheduler_service.settings import Settings

_MAX_CHARACTERS = 16_384
_MAX_SHOWN = 200


class JsonFilter(HostFilter):
    """Passes hosts for which the query of the hint ``query`` is true.

    A query is a JSON list ``[operator, argument, ...]`` with the operators
    ``=``, ``<``, ``>``, ``<=``, ``>=``, ``in``, ``not``, ``and``, ``or``. An
    argument is a value, a query, or a variable such as ``$free_ram_mb`` or
    ``$stats.key``. Arguments that are null, empty or variables without a
    value are left out. ``not`` gives a list with each argument negated: as
    the whole query it is true where any element is, as a part of one it is
    true unless it is empty. A host fails on whose values the query cannot be
    evaluated.
    """

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Evaluate the query over the columns of its variables.

        :raises InvalidRequest: it is no query, or compares values of
            different types
        """
        text = request.hint('query')
        if not text:
            return None
        with reading(
            'scheduler_hints.query',
            'a JSON list [operator, argument, ...], as one text',
            text,
        ):
            parsed = _parse(text)
            if not parsed:
                return None
            return ColumnEvaluator(table, settings).evaluate(parsed)

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        return EACH_TIME if request.hint('query') else None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        query = _parse(request.hint('query'))
        values: list[str] = []
        by_name: dict[str, Any] = {}
        for variable in _variables(query):
            name = attribute_of(variable)
            column = host_attributes.dictionary_column(table, name, settings)
            if column is not None:
                by_name[name] = column.at(row)
                values.append(f'{variable} is {_shown(by_name[name])}')
        why = why_unreadable(matches, ', '.join(values), query, by_name)
        if why:
            return why
        if not values:
            return 'the query is false'
        return f'the query is false, as {", ".join(values)}'


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _MAX_SHOWN else f'{text[:_MAX_SHOWN]}...'


def _parse(text: Any) -> Any:
    """Parse the hint.

    :raises ValueError: it is not JSON, or too long
    :raises TypeError: it is not a text
    """
    if not isinstance(text, str):
        raise TypeError('a query is one JSON text, not a list or an object')
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f'a query has at most {_MAX_CHARACTERS} characters')
    return json.loads(text)


class NotColumnarError(Exception):
    """The query has a part that is not evaluated by columns."""


class ColumnEvaluator:
    """Evaluates queries for all hosts at once."""

    def __init__(self, table: HostTable, settings: Settings) -> None:
        self._table = table
        self._settings = settings
        # Hosts on whose values some part of the query cannot be evaluated.
        self._unreadable = np.zeros(len(table), np.bool_)

    def evaluate(self, query: Any) -> Mask:
        """Return bool[n]; false where a host's values cannot be read.

        :raises KeyError: it names an operator that does not exist
        :raises TypeError: it compares values of different types, whatever
            the hosts report
        :raises ValueError: the query is too large or nested too deeply
        """
        _check(query)
        try:
            mask = self._evaluate(query, top=True)
        except NotColumnarError:
            mask = self._evaluate_combinations(query)
        return mask & ~self._unreadable

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
        sign, arguments = query[0], query[1:]
        if any(isinstance(argument, list) for argument in arguments):
            raise NotColumnarError
        numbers = [self._number(argument) for argument in arguments]
        if len(numbers) < 2 or any(number is None for number in numbers):
            return self._evaluate_combinations(query)
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

    def _evaluate_combinations(self, query: Any) -> Mask:
        """Return bool[n], evaluated once per combination of values in use."""
        columns: dict[str, DictionaryColumn] = {}
        for name in sorted({attribute_of(name) for name in _variables(query)}):
            column = host_attributes.dictionary_column(
                self._table, name, self._settings
            )
            if column is not None:
                columns[name] = column
        if not columns:
            return np.full(len(self._table), matches(query, {}), np.bool_)
        free_form = any(map(host_attributes.is_free_form, columns))
        codes, combination = combinations(list(columns.values()))
        passes, faulty = np.zeros((2, len(codes[0])), np.bool_)
        values = (
            [column.values[code] for code in column_codes.tolist()]
            for column, column_codes in zip(
                columns.values(), codes, strict=True
            )
        )
        for at, row in enumerate(zip(*values, strict=True)):
            try:
                passes[at] = matches(
                    query, dict(zip(columns, row, strict=True))
                )
            except FAULTS:
                if not free_form:
                    raise
                faulty[at] = True
        if faulty.any():
            self._unreadable |= faulty.take(combination)
        return passes.take(combination)


def _join(sign: str, masks: Sequence[Any]) -> Mask:
    join = operator.and_ if sign == 'and' else operator.or_
    return functools.reduce(join, masks)


MAX_DEPTH = 32
MAX_PARTS = 2000
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    '=': operator.eq,
    '<': operator.lt,
    '>': operator.gt,
    '<=': operator.le,
    '>=': operator.ge,
}


def matches(query: Any, values: Mapping[str, Any]) -> bool:
    """Return whether a query is true.

    :param values: attributes of a host by name, without the ``$``
    :raises TypeError: it compares values of different types
    :raises AttributeError: it looks for a key in what has none
    """
    result = _value(query, values)
    return any(result) if isinstance(result, list) else bool(result)


def _value(query: Any, values: Mapping[str, Any]) -> Any:
    if not query:
        return True
    arguments = []
    for argument in query[1:]:
        if isinstance(argument, list):
            argument = _value(argument, values)
        elif isinstance(argument, str):
            argument = _resolve(argument, values)
        if argument is not None:
            arguments.append(argument)
    return _OPERATORS[query[0]](arguments)


def _resolve(text: str, values: Mapping[str, Any]) -> Any:
    """Return a text, or the value of a variable; None where it has none."""
    if not text:
        return None
    if not text.startswith('$'):
        return text
    name, *keys = text[1:].split('.')
    value = values.get(name)
    for key in keys:
        if value is None:
            return None
        value = value.get(key)
    return value


def _comparison(
    compare: Callable[[Any, Any], Any],
) -> Callable[[list[Any]], Any]:
    """Return an operator that compares its first argument with each other."""

    def apply(arguments: list[Any]) -> bool:
        first, others = arguments[:1], arguments[1:]
        return bool(others) and all(
            compare(first[0], other) for other in others
        )

    return apply


def _is_in(arguments: list[Any]) -> bool:
    return len(arguments) > 1 and arguments[0] in arguments[1:]


_OPERATORS: dict[str, Callable[[list[Any]], Any]] = {
    **{sign: _comparison(compare) for sign, compare in COMPARISONS.items()},
    'in': _is_in,
    'and': all,
    'or': any,
    'not': lambda arguments: [not argument for argument in arguments],
}


def attribute_of(variable: str) -> str:
    """Return the host attribute that ``$name`` or ``$name.key`` reads."""
    return variable[1:].split('.')[0]


def _variables(query: Any) -> list[str]:
    if not isinstance(query, list):
        is_variable = isinstance(query, str) and query.startswith('$')
        return [query] if is_variable else []
    return [name for part in query[1:] for name in _variables(part)]


def _check(query: Any) -> None:
    """Refuse a query that would take too long to evaluate.

    :raises ValueError: it is too large or nested too deeply
    :raises KeyError: it names an operator that does not exist
    :raises TypeError: it is not a query
    """
    level, parts = [query], 0
    for _ in range(MAX_DEPTH):
        for part in level:
            if part:
                _OPERATORS[part[0]]
        arguments = [argument for part in level for argument in part]
        parts += len(arguments)
        if parts > MAX_PARTS:
            raise ValueError(f'a query has at most {MAX_PARTS} parts')
        level = [part for part in arguments if isinstance(part, list)]
        if not level:
            return
    raise ValueError(f'a query is nested at most {MAX_DEPTH} levels deep')
