"""The host filter JsonFilter."""

from __future__ import annotations

import json
from typing import Any

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import EACH_TIME, Key
from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.support import host_attributes
from scheduler_service.filters.support.json_columns import ColumnEvaluator
from scheduler_service.filters.support.json_query import (
    Query,
    attribute_of,
    variables,
)
from scheduler_service.filters.support.requested import reading
from scheduler_service.filters.support.unreadable import why_unreadable
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
        """Return None where there is no query."""
        return EACH_TIME if request.hint('query') else None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give the values that the variables of the query have."""
        query = _parse(request.hint('query'))
        values: list[str] = []
        by_name: dict[str, Any] = {}
        for variable in variables(query):
            name = attribute_of(variable)
            column = host_attributes.dictionary_column(table, name, settings)
            if column is not None:
                by_name[name] = column.at(row)
                values.append(f'{variable} is {_shown(by_name[name])}')
        why = why_unreadable(Query(query).matches, ', '.join(values), by_name)
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
