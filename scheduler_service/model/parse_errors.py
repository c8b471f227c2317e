"""Words what is wrong with a document: the place, what was expected there.

The parser's texts name types of Python; these name the path in the document,
and the value that was found. Stateless.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import inspect

_AT = re.compile(
    r'^(?P<what>.*?)(?: - at (?:`key` in )?`\$?\.?(?P<path>.*)`)?$', re.S
)
_UUID = re.compile(r"matching regex '\^\[0-9a-fA-F\].*'")
_STEP = re.compile(r'\[(\d+)\]|\[\.\.\.\]|\.?([^.\[\]]+)')
_KINDS = {
    'int': 'an integer',
    'str': 'a string',
    'float': 'a number',
    'bool': 'true or false',
    'array': 'a list',
    'object': 'an object',
    'null': 'null',
}


def explain(message: str, document: Any, kind: Any) -> tuple[str, str]:
    """Return the path, and what was expected and found, of a parser's text."""
    match = _AT.match(message)
    assert match is not None
    what, path = match['what'], match['path'] or ''
    place, value = _locate(path, document)
    if what.startswith('Object contains unknown field'):
        field = what.split('`')[1]
        return join(place, field), 'unknown key'
    if what.startswith('Object missing required field'):
        field = what.split('`')[1]
        return join(place, field), 'required, but absent'
    if what.startswith('Expected'):
        least = _least(inspect.type_info(kind), _STEP.findall(place))
        return place, f'expected {_expected(what, least)}, got {shown(value)}'
    if what.startswith('Invalid enum value'):
        return place, _not_accepted(place, value, kind)
    return place, what


def _not_accepted(place: str, value: Any, kind: Any) -> str:
    """Return that a value is not one of those that its field accepts."""
    accepted = _accepted(inspect.type_info(kind), _STEP.findall(place))
    if not accepted:
        return f'not an accepted value, got {shown(value)}'
    listed = ', '.join(accepted)
    if isinstance(value, dict):
        return f'expected the keys {listed} only, got {shown(value)}'
    return f'{shown(value)} is not one of {listed}'


def _accepted(kind: Any, path: list[tuple[str, str]]) -> list[str]:
    """Return the values of the enumeration at a path within a type."""
    found = _type_at(kind, path)
    if isinstance(found, inspect.DictType):
        return _accepted(found.key_type, [])
    if isinstance(found, inspect.LiteralType):
        return [str(value) for value in found.values]
    return []


def _least(kind: Any, path: list[tuple[str, str]]) -> int | None:
    """Return the least integer that is accepted at a path; None: any is."""
    found = _type_at(kind, path)
    return found.ge if isinstance(found, inspect.IntType) else 0


def _type_at(kind: Any, path: list[tuple[str, str]]) -> Any:
    """Return the type at a path within another one; None: it is not known."""
    if isinstance(kind, inspect.UnionType):
        kind = next((each for each in kind.types if not _is_null(each)), kind)
    if not path:
        return kind
    if isinstance(kind, inspect.ListType):
        return _type_at(kind.item_type, path[1:])
    if isinstance(kind, inspect.DictType):
        return _type_at(kind.value_type, path[1:])
    if isinstance(kind, inspect.StructType):
        fields = {field.name: field.type for field in kind.fields}
        return _type_at(fields.get(path[0][1]), path[1:])
    return None


def _is_null(kind: Any) -> bool:
    return isinstance(kind, inspect.NoneType)


def _expected(what: str, least: int | None) -> str:
    """Return in words what ``Expected `int | null`, got `str``` expects.

    :param least: of integers, if any
    """
    body = what.removeprefix('Expected ').split(', got ')[0]
    for kind, words in _KINDS.items():
        body = re.sub(rf'\b{kind}\b', words, body)
    body = body.replace('`', '').replace(' | ', ' or ')
    if least is not None and body in ('an integer', 'an integer or null'):
        body = body.replace('an integer', f'an integer >= {least}')
    body = _UUID.sub('that is a UUID', body)
    return body.replace(
        r"matching regex '^[A-Z0-9_]{1,255}\\Z'", 'of A-Z, 0-9 and _'
    )


def _locate(path: str, document: Any) -> tuple[str, Any]:
    """Follow a parser's path; return it in our form, and the value there.

    The parser does not name keys of a map, so in a map the path ends there.
    """
    value, steps = document, []
    for index, key in _STEP.findall(path):
        if not index and not key:
            break
        step: Any = int(index) if index else key
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            break
        steps.append(f'[{step}]' if index else f'.{step}')
    return ''.join(steps).lstrip('.'), value


def join(place: str, key: str) -> str:
    if not place or not key or key.startswith('['):
        return f'{place}{key}'
    return f'{place}.{key}'


def shown(value: Any) -> str:
    """Return a value as JSON, shortened."""
    if isinstance(value, float) and not math.isfinite(value):
        # In JSON it would be null.
        return str(value)
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        text = written(value, repr)
    return text if len(text) <= 60 else text[:57] + '...'


def written(value: Any, how: Callable[[Any], str] = str) -> str:
    """Return a value as a text, also where an integer in it is too long.

    :param how: ``str`` or ``repr``
    """
    try:
        return how(value)
    except ValueError:
        return 'a value with too many digits'


def is_too_long(value: int) -> bool:
    """Whether an integer has more digits than Python writes."""
    try:
        repr(value)
    except ValueError:
        return True
    return False
