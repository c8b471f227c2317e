"""The query language of JsonFilter, evaluated on the values of one host."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MAX_DEPTH = 32
MAX_PARTS = 2000
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    '=': operator.eq,
    '<': operator.lt,
    '>': operator.gt,
    '<=': operator.le,
    '>=': operator.ge,
}


class Query:
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
        """Say whether the query is true.

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
