"""Documents of extender calls, parsed and written as Go's encoding/json does.

Keys of replies match in any case at every depth; of two spellings the later
counts, and objects are merged; :func:`respelled` does so for calls. Of a body
only the first JSON value is read. Empty fields are written as well. Functions
that read a document raise WireError where it is not valid. Stateless.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

_ZERO_VALUES = {str: '', int: 0, bool: False, list: None, dict: None}
_KINDS = {
    str: 'a string',
    int: 'an integer of 64 bits',
    bool: 'true or false',
    list: 'a list',
    dict: 'an object',
}
_LIMIT = 2**63
_SURROGATE = re.compile('[\ud800-\udfff]')


class WireError(ValueError):
    """A document is not valid; all of it is rejected."""


class NotJson(WireError):
    """A document is not JSON, or nested too deeply."""


def _refuse(text: str) -> Any:
    raise NotJson(f'{text} is not JSON')


def _integer(digits: str) -> int | float:
    """Return an integer; infinite if it has more digits than Python reads.

    Infinity makes the check of the field fail, not that of the document.
    """
    try:
        return int(digits)
    except ValueError:
        return float(digits)


_decoder = json.JSONDecoder(parse_constant=_refuse, parse_int=_integer)
# Returns a document as JSON.
encode = msgspec.json.Encoder().encode


def decode(body: bytes | msgspec.Raw) -> Any:
    """Return the first JSON value of a body.

    Numbers that are out of range become infinite.

    :raises NotJson: the body does not start with a JSON value
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        # The slower parser accepts further values, invalid UTF-8, and numbers
        # out of range.
        pass
    text = bytes(body).decode('utf-8', 'replace').lstrip(' \t\r\n')
    try:
        return _without_surrogates(_decoder.raw_decode(text)[0])
    except RecursionError:
        raise NotJson('nested too deeply') from None
    except NotJson:
        raise
    except ValueError as fault:
        raise NotJson(f'not JSON: {fault}' if text else 'EOF') from None


def _without_surrogates(value: Any) -> Any:
    """Return a value with lone surrogates replaced by U+FFFD."""
    if isinstance(value, str):
        return _SURROGATE.sub('\ufffd', value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {
            _without_surrogates(key): _without_surrogates(item)
            for key, item in value.items()
        }
    return value


# The fields of calls that are read, as Go and API servers spell them.
_SPELLED = {
    name.lower(): name
    for name in (
        'Pod', 'Nodes', 'NodeNames', 'NodeNameToVictims',
        'NodeNameToMetaVictims', 'Pods', 'NumPDBViolations', 'items',
        'metadata', 'name', 'namespace', 'uid', 'labels', 'annotations',
        'spec', 'nodeName', 'nodeSelector', 'containers', 'initContainers',
        'resources', 'limits', 'requests', 'overhead', 'restartPolicy',
        'status', 'schedulingGroup', 'podGroupName',
    )
}  # fmt: skip
# Fields that are absent where they are null; victims must have their pods.
_READ = frozenset(_SPELLED.values()) - {'Pods'}
# Objects whose keys are no names of fields.
_MAPS = {'labels', 'annotations', 'nodeSelector', 'limits', 'requests',
         'overhead', 'status'}  # fmt: skip


def respelled(value: Any, place: str = '') -> Any:
    """Return the arguments of a call, with the usual spelling of fields.

    :param place: the field that the value belongs to
    """
    if isinstance(value, list):
        return [respelled(item, place) for item in value]
    if not isinstance(value, dict) or place in _MAPS:
        return value
    if place.startswith('NodeNameTo'):
        return {node: respelled(item) for node, item in value.items()}
    fields: dict[str, Any] = {}
    for key, item in value.items():
        name = _SPELLED.get(key.lower()) or key
        if item is None and name in _READ:
            # As if it was not there.
            continue
        if name == 'uid' and place == 'Pods':
            name = 'UID'
        made, earlier = respelled(item, name), fields.get(name)
        if isinstance(earlier, dict) and isinstance(made, dict):
            made = {**earlier, **made}
        fields[name] = made
    return fields


class _Score(msgspec.Struct, gc=False):
    Host: str
    Score: int


def score_list(names: Sequence[str], values: Sequence[int]) -> msgspec.Raw:
    """Return the reply of prioritize.

    :param values: the scores of the nodes
    """
    return msgspec.Raw(encode(list(map(_Score, names, values))))


def field(document: Any, name: str, kind: type[Any]) -> Any:
    """Return a field whose name is spelled in any case.

    :return: the zero value of *kind* if the field is absent or null; None for
        lists and objects
    """
    if type(document) is not dict and not isinstance(document, Mapping):
        raise WireError(f'expected an object with {name}')
    lower, length = name.lower(), len(name)
    result = None
    for key, value in document.items():
        # The exact comparison comes first: most keys have the usual spelling.
        if key != name and (len(key) != length or key.lower() != lower):
            continue
        if value is not None and not _is(value, kind):
            raise WireError(
                f'{name}: expected {_KINDS[kind]}, got {repr(value)[:40]}'
            )
        if isinstance(result, dict) and isinstance(value, dict):
            result = {**result, **value}
        else:
            result = value
    return _ZERO_VALUES[kind] if result is None else result


def _is(value: Any, kind: type[Any]) -> bool:
    if kind is int:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and -_LIMIT <= value < _LIMIT
    return isinstance(value, kind)


def strings(document: Any, name: str) -> list[str] | None:
    """Return a list of strings; None if it is absent or null."""
    items: list[str] | None = field(document, name, list)
    if items is not None and not all(isinstance(item, str) for item in items):
        raise WireError(f'{name}: expected strings only')
    return items


def name_of(document: Any) -> str:
    """Return ``metadata.name`` of a v1 object."""
    name: str = field(field(document, 'metadata', dict) or {}, 'name', str)
    return name


class FilterReply(NamedTuple):
    """The reply of a filter verb.

    :ivar nodes: names of the node objects; None without a list
    :ivar failed: node -> reason
    """

    nodes: list[str] | None
    node_names: list[str] | None
    failed: dict[str, str]
    error: str


def _reasons(document: Any, name: str) -> dict[str, str]:
    texts: dict[str, str] = field(document, name, dict) or {}
    if not all(isinstance(text, str) for text in texts.values()):
        raise WireError(f'{name}: expected strings only')
    return texts


def filter_reply(document: Any) -> FilterReply:
    """Parse the reply of a filter verb."""
    if document is None:
        return FilterReply(None, None, {}, '')
    listed = field(document, 'Nodes', dict)
    nodes = None if listed is None else field(listed, 'items', list) or []
    return FilterReply(
        None if nodes is None else [name_of(node) for node in nodes],
        strings(document, 'NodeNames'),
        {
            **_reasons(document, 'FailedNodes'),
            **_reasons(document, 'FailedAndUnresolvableNodes'),
        },
        field(document, 'Error', str),
    )


def scores(document: Any) -> dict[str, int]:
    """Parse the reply of a prioritize verb: the sum of scores by host."""
    if document is None:
        return {}
    if not isinstance(document, list):
        raise WireError('scores: expected a list')
    totals: dict[str, int] = {}
    for score in document:
        host = field(score, 'Host', str)
        totals[host] = totals.get(host, 0) + field(score, 'Score', int)
    return totals


def error_of(document: Any) -> str:
    """Parse the reply of a bind verb: its error, empty if there is none."""
    return '' if document is None else str(field(document, 'Error', str))
