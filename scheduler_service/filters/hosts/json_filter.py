"""The host filter JsonFilter."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import (
    DictionaryColumn,
    Mask,
    mask_of_combinations,
)
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import EACH_TIME, Key
from scheduler_service.filters import host_attributes
from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.unreadable import (
    FAULTS,
    reading,
    why_unreadable,
)
from scheduler_service.model import Request
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
        for variable in variables(query):
            name = attribute_of(variable)
            column = host_attributes.dictionary_column(table, name, settings)
            if column is not None:
                by_name[name] = column.at(row)
                values.append(f'{variable} is {_shown(by_name[name])}')
        why = why_unreadable(
            JsonQuery(query).matches, ', '.join(values), by_name
        )
        if why:
            return why
        if not values:
            return 'the query is false'
        return f'the query is false, as {", ".join(values)}'


def _shown(value: Any) -> str:
    """Return a value as text, shortened: a host may report any."""
    text = str(value)
    return text if len(text) <= _MAX_SHOWN else f'{text[:_MAX_SHOWN]}...'


def _parse(text: Any) -> Any:
    """Parse the hint.

    :raises ValueError: it is not JSON, or too long
    :raises TypeError: it is not a text
    """
    if isinstance(text, str) and len(text) > _MAX_CHARACTERS:
        raise ValueError(f'a query has at most {_MAX_CHARACTERS} characters')
    if not isinstance(text, str):
        raise TypeError('a query is one JSON text, not a list or an object')
    return json.loads(text)


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
        whole = JsonQuery(query)
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
        """Compare the first argument with each further argument."""
        sign, arguments = query[0], query[1:]
        if any(isinstance(argument, list) for argument in arguments):
            raise NotColumnarError
        numbers = [self._number(argument) for argument in arguments]
        if len(numbers) < 2 or any(number is None for number in numbers):
            return self._evaluate_combinations(JsonQuery(query))
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

    def _evaluate_combinations(self, query: JsonQuery) -> Mask:
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
            attributes = dict(zip(columns, values, strict=True))
            return bool(why_unreadable(query.matches, 'query', attributes))

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


MAX_DEPTH = 32
MAX_PARTS = 2000
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    '=': operator.eq,
    '<': operator.lt,
    '>': operator.gt,
    '<=': operator.le,
    '>=': operator.ge,
}


class JsonQuery:
    """A query, bounded in size and depth.

    :ivar variables: the variables it names, such as ``$free_ram_mb``, sorted
    :raises ValueError: it is too large or nested too deeply
    :raises KeyError: it names an operator that does not exist
    :raises TypeError: it is not a query
    """

    def __init__(self, query: Any) -> None:
        _check_size(query)
        _check_operators(query)
        self._query = query
        self.variables = sorted(set(variables(query)))

    def matches(self, values: Mapping[str, Any]) -> bool:
        """Return whether the query is true.

        :param values: attributes of a host by name, without the ``$``
        :raises TypeError: it compares values of different types
        :raises AttributeError: it looks for a key in what has none
        """
        result = self._evaluate(self._query, values)
        if isinstance(result, list):
            return any(result)
        return bool(result)

    def _evaluate(self, query: Any, values: Mapping[str, Any]) -> Any:
        if not query:
            return True
        apply = _OPERATORS[query[0]]
        arguments = []
        for argument in query[1:]:
            if isinstance(argument, list):
                argument = self._evaluate(argument, values)
            elif isinstance(argument, str):
                argument = _resolve(argument, values)
            if argument is not None:
                arguments.append(argument)
        return apply(arguments)


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


def variables(query: Any) -> Iterator[str]:
    """Yield the variables that a query names, with their ``$``."""
    if isinstance(query, list):
        for argument in query[1:]:
            if isinstance(argument, str) and argument.startswith('$'):
                yield argument
            else:
                yield from variables(argument)


def _check_operators(query: Any) -> None:
    """Refuse a query with an operator that does not exist.

    :raises KeyError: there is no such operator
    :raises TypeError: it is not a query
    """
    if query:
        _OPERATORS[query[0]]
        for argument in query[1:]:
            if isinstance(argument, list):
                _check_operators(argument)


def _check_size(query: Any) -> None:
    """Refuse a query that would take too long to evaluate.

    :raises ValueError: it is too large or nested too deeply
    """
    level, parts = [query], 0
    for _ in range(MAX_DEPTH):
        level = [
            argument
            for part in level
            if isinstance(part, list)
            for argument in part
        ]
        parts += len(level)
        if not level:
            return
        if parts > MAX_PARTS:
            raise ValueError(f'a query has at most {MAX_PARTS} parts')
    raise ValueError(f'a query is nested at most {MAX_DEPTH} levels deep')
