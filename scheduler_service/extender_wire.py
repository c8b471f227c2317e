"""Documents of extender calls, parsed and written as Go's encoding/json does.

Keys match in any case at every depth; of two spellings the later counts, and
objects are merged. Of a body only the first JSON value is read. Empty fields
are written as well. Stateless.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
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
    :raises WireError: the field is of another kind
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
    """Return a list of strings; None if it is absent or null.

    :raises WireError: it is something else
    """
    items: list[str] | None = field(document, name, list)
    if items is not None and not all(isinstance(item, str) for item in items):
        raise WireError(f'{name}: expected strings only')
    return items


def name_of(document: Any) -> str:
    """Return ``metadata.name`` of a v1 object."""
    name: str = field(field(document, 'metadata', dict) or {}, 'name', str)
    return name


def items(document: Any, name: str) -> list[dict[str, Any]] | None:
    """Return the objects of a NodeList; None if it is absent or null.

    :raises WireError: it is not a list of objects
    """
    node_list = field(document, name, dict)
    if node_list is None:
        return None
    objects = field(node_list, 'items', list) or []
    if not all(isinstance(item, dict) for item in objects):
        raise WireError(f'{name}.items: expected objects only')
    return list(objects)


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
    """Parse the reply of a filter verb.

    :raises WireError: it is not valid
    """
    if document is None:
        return FilterReply(None, None, {}, '')
    nodes = items(document, 'Nodes')
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
    """Parse the reply of a prioritize verb: the sum of scores by host.

    :raises WireError: it is not a list of hosts and integers
    """
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
    """Parse the reply of a bind verb: its error, empty if there is none.

    :raises WireError: it is not valid
    """
    return '' if document is None else str(field(document, 'Error', str))


class Victims(NamedTuple):
    """Pods to evict from one node.

    :ivar pods: their uids
    :ivar violations: how many disruption budgets this violates
    """

    pods: list[str]
    violations: int


def candidate_victims(document: Any) -> dict[str, Victims]:
    """Parse the candidates of a preempt call, with pods or with uids.

    :raises WireError: it is not valid
    """
    by_node = field(document, 'NodeNameToMetaVictims', dict)
    with_pods = by_node is None
    if with_pods:
        by_node = field(document, 'NodeNameToVictims', dict) or {}
    found = {}
    for node, entry in by_node.items():
        victims = {} if entry is None else entry
        pods = field(victims, 'Pods', list) or []
        if with_pods:
            pods = [field(pod, 'metadata', dict) or {} for pod in pods]
        uids = [field(pod, 'uid', str) for pod in pods]
        found[node] = Victims(uids, field(victims, 'NumPDBViolations', int))
    return found


def meta_victims(
    by_node: Mapping[str, Victims], nodes: Iterable[str]
) -> dict[str, Any]:
    """Return the reply of a preempt verb that keeps some nodes."""
    return {
        'NodeNameToMetaVictims': {
            node: {
                'Pods': [{'UID': uid} for uid in by_node[node].pods],
                'NumPDBViolations': by_node[node].violations,
            }
            for node in nodes
        }
    }
