"""The queries of JsonFilter, on the values of one host."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MAX_DEPTH = 32
MAX_PARTS = 2000
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    '=': operator.eq,
    '<': operator.lt,
    '>': operator.gt,
    '<=': operator.le,
    '>=': operator.ge,
}


class Query:
    """One query, bounded in size and depth.

    :raises ValueError: it is too large or nested too deeply
    """

    def __init__(self, query: Any) -> None:
        _check_size(query)
        self._query = query
        self.variables = sorted(set(variables(query)))

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Say whether it is true for a host's attributes.

        :raises KeyError: there is no such operator
        :raises TypeError: values do not compare
        """
        found = self._process(self._query, values)
        if isinstance(found, list):
            return any(found)
        return bool(found)

    def _process(self, query: Any, values: Mapping[str, Any]) -> Any:
        if not query:
            return True
        work = _OPERATORS[query[0]]
        args = []
        for arg in query[1:]:
            if isinstance(arg, list):
                arg = self._process(arg, values)
            elif isinstance(arg, str):
                arg = _resolve(arg, values)
            if arg is not None:
                args.append(arg)
        return work(args)


def _resolve(text: str, values: Mapping[str, Any]) -> Any:
    """Return a text, or the value of a variable; None where there is none."""
    if not text:
        return None
    if not text.startswith('$'):
        return text
    name, *steps = text[1:].split('.')
    value = values.get(name)
    for step in steps:
        if value is None:
            return None
        value = value.get(step)
    return value


def _comparing(check: Callable[[Any, Any], Any]) -> Callable[[list[Any]], Any]:
    def work(args: list[Any]) -> bool:
        return len(args) > 1 and all(check(args[0], one) for one in args[1:])

    return work


def _is_in(args: list[Any]) -> bool:
    return len(args) > 1 and args[0] in args[1:]


_OPERATORS: dict[str, Callable[[list[Any]], Any]] = {
    **{sign: _comparing(check) for sign, check in COMPARE.items()},
    'in': _is_in,
    'and': all,
    'or': any,
    'not': lambda args: [not one for one in args],
}


def variables(query: Any) -> Iterator[str]:
    """Yield the variables that a query names."""
    if isinstance(query, list):
        for one in query[1:]:
            if isinstance(one, str) and one.startswith('$'):
                yield one
            else:
                yield from variables(one)


def _check_size(query: Any) -> None:
    """Refuse a query that would cost too much.

    :raises ValueError: it is too large or nested too deeply
    """
    level, parts = [query], 0
    for _ in range(MAX_DEPTH):
        level = [
            one for part in level if isinstance(part, list) for one in part
        ]
        parts += len(level)
        if not level:
            return
        if parts > MAX_PARTS:
            raise ValueError(f'a query has at most {MAX_PARTS} parts')
    raise ValueError(f'a query is nested at most {MAX_DEPTH} deep')
