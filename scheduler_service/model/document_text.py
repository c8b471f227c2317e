"""Reads the text of documents, YAML or JSON, and finds keys given twice.

Parsers silently keep the last value of such a key: an operator who pasted a
host twice into an entry would lose the first. Stateless.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import math
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec
import yaml

from scheduler_service import errors

_JSON_STARTS = (b'{', b'[')
_PART_BYTES, _MOST_PARTS = 1024**2, 512
# How many values the aliases of a document may stand for, for each byte of it.
_MOST_VALUES = 100


def read_all(file: BinaryIO) -> bytes:
    """Return what an open file has.

    :raises OSError: it is too large, such as a device that never ends
    """
    parts = iter(lambda: file.read(_PART_BYTES), b'')
    with contextlib.suppress(MemoryError):
        first = list(itertools.islice(parts, _MOST_PARTS))
        if len(first) < _MOST_PARTS:
            return b''.join(first)
    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), file.name)


def read(
    text: bytes, source: str, fault: type[errors.SchedulerError]
) -> tuple[Any, list[str]]:
    """Return plain values, and a sentence for each duplicate key.

    :param source: its name in errors, such as a path
    :param fault: the class of the error if it is neither YAML nor JSON
    """
    try:
        value, twice = parse(text)
    except (ValueError, RecursionError) as error:
        raise fault(
            f'{source}: cannot be read as YAML or JSON: {error}',
            source=source,
        ) from None
    return value, [f'{source}: {sentence}' for sentence in twice]


def parse(text: bytes) -> tuple[Any, list[str]]:
    """Return plain values, and a sentence for each duplicate key.

    Several objects in JSON, one after the other, are a list.

    :raises ValueError: it is neither YAML nor JSON
    """
    if text.lstrip()[:1] in _JSON_STARTS:
        # Lists and mappings of YAML may begin in the same way.
        with contextlib.suppress(ValueError):
            return parse_json(text)
        with contextlib.suppress(ValueError):
            return _parse_json_stream(text.decode())
    return _parse_yaml(text)


def parse_json(text: bytes) -> tuple[Any, list[str]]:
    """Return plain values, and a sentence for each duplicate key.

    :raises ValueError: it is not JSON
    :raises RecursionError: it is nested too deeply
    """
    # The strict parser; the second one finds keys, and is more lenient.
    value = msgspec.json.decode(text)
    return value, _twice_in_json(text)


def _parse_json_stream(text: str) -> tuple[list[Any], list[str]]:
    """Return the objects that a client printed one after the other.

    :raises ValueError: it is something else
    """
    values: list[Any] = []
    twice: list[str] = []
    start = 0
    while text[start:].strip():
        start = len(text) - len(text[start:].lstrip())
        _, end = json.JSONDecoder().raw_decode(text, start)
        value, keys = parse_json(text[start:end].encode())
        twice += [f'[{len(values)}].{key}' for key in keys]
        values.append(value)
        start = end
    return values, twice


def _twice_in_json(text: bytes) -> list[str]:
    twice: list[tuple[int, str]] = []

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(pairs)
        if len(built) < len(pairs):
            keys: set[str] = set()
            for key, _ in pairs:
                if key in keys:
                    twice.append((id(built), key))
                    held.append(built)
                keys.add(key)
        return built

    # So that no other object gets the same identity.
    held: list[Any] = []
    whole = json.loads(text, object_pairs_hook=build)
    if not twice:
        return []
    places = dict(_places(whole, ''))
    return [
        f'{places.get(identity, "")}.{key}'.lstrip('.') + ': is there twice'
        for identity, key in twice
    ]


def _places(value: Any, place: str) -> Iterator[tuple[int, str]]:
    """Yield the identity of every object with its path."""
    if isinstance(value, dict):
        yield id(value), place
        for key, item in value.items():
            yield from _places(item, f'{place}.{key}'.lstrip('.'))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _places(item, f'{place}[{index}]')


_Base: Any = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """Remembers the keys that a mapping has twice."""

    def __init__(self, text: bytes) -> None:
        super().__init__(text)
        self.twice: list[str] = []

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key.value, str):
                # Not a plain key: the parser refuses it, or it is unusual.
                continue
            name = (key.tag, key.value)
            if name in keys:
                line = key.start_mark.line + 1
                self.twice.append(f'line {line}: {key.value} is there twice')
            keys.add(name)
        built = super().construct_mapping(node, deep)
        for key in built:
            if not isinstance(key, str):
                _refuse(node, f'the key {key} is not a text; quote it')
        return built

    def construct_yaml_float(self, node: Any) -> float:
        value: float = super().construct_yaml_float(node)
        if not math.isfinite(value):
            _refuse(node, f'{node.value} is not a finite number')
        return value


_Loader.add_constructor(
    'tag:yaml.org,2002:float', _Loader.construct_yaml_float
)


def _refuse(node: Any, text: str) -> None:
    raise ValueError(f'line {node.start_mark.line + 1}: {text}')


def _count(node: Any, counts: dict[Any, int]) -> int:
    """Return how many values a node has in all, with those of aliases.

    :param counts: of the nodes that were counted; 0: it is being counted
    :raises ValueError: a value contains itself
    """
    if node not in counts:
        counts[node] = 0
        inner = () if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(node, yaml.MappingNode):
            inner = itertools.chain.from_iterable(inner)
        counts[node] = 1 + sum(_count(each, counts) for each in inner)
    if not counts[node]:
        _refuse(node, 'a value contains itself')
    return counts[node]


def _parse_yaml(text: bytes) -> tuple[Any, list[str]]:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, []
        if b'*' in text and _count(node, {}) > _MOST_VALUES * len(text):
            _refuse(node, 'aliases stand for too many values')
        return loader.construct_document(node), loader.twice
    except yaml.YAMLError as fault:
        raise ValueError(' '.join(str(fault).split())) from None
    except (KeyError, OverflowError, TypeError) as fault:
        # Raised for values that do not fit their tag or form.
        raise ValueError(f'a value is not valid: {fault}') from None
    finally:
        loader.dispose()
