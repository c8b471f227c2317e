"""The extender's documents on the wire, read and written as Go does it.

Keys match in any case and at every depth; of two spellings the later one
counts, and objects are merged. A body is its first JSON value. Nothing that
is written is left out when it is empty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

_MISSING = {str: '', int: 0, bool: False, list: None, dict: None}
_LIMIT = 2**63
_HALF = re.compile('[\ud800-\udfff]')


class WireError(ValueError):
    """A document is not what it has to be; the whole of it is refused."""


def _refuse(text: str) -> Any:
    raise WireError(f'{text} is no JSON')


_decoder = json.JSONDecoder(parse_constant=_refuse)
_encode = msgspec.json.Encoder().encode


def decode(body: bytes) -> Any:
    """Return the first JSON value of a body.

    :raises WireError: there is none
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        # More may follow, or text may be mended: the slower way sees to it.
        pass
    text = body.decode('utf-8', 'replace').lstrip(' \t\r\n')
    try:
        return _mended(_decoder.raw_decode(text)[0])
    except RecursionError:
        raise WireError('nested too deeply') from None
    except ValueError as fault:
        raise WireError(f'not JSON: {fault}' if text else 'EOF') from None


def _mended(value: Any) -> Any:
    """Return a value whose text has no halves of surrogate pairs."""
    if isinstance(value, str):
        return _HALF.sub('\ufffd', value)
    if isinstance(value, list):
        return [_mended(one) for one in value]
    if isinstance(value, dict):
        return {_mended(key): _mended(one) for key, one in value.items()}
    return value


def encode(document: Any) -> bytes:
    """Return a document as JSON."""
    return _encode(document)


def field(document: Any, name: str, kind: type[Any]) -> Any:
    """Return a field in whatever case it is spelled.

    :return: the zero of *kind* where it is absent or null
    :raises WireError: it is of another kind
    """
    if not isinstance(document, Mapping):
        raise WireError(f'expected an object around {name}')
    # Most documents spell it as it should be, and only so.
    low = name.lower()
    found = None
    for key, value in document.items():
        if key != name and key.lower() != low:
            continue
        if value is not None and not _is(value, kind):
            raise WireError(f'{name}: {_shown(value)} is no {kind.__name__}')
        if isinstance(found, dict) and isinstance(value, dict):
            found = {**found, **value}
        else:
            found = value
    return _MISSING[kind] if found is None else found


def _is(value: Any, kind: type[Any]) -> bool:
    if kind is int:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and -_LIMIT <= value < _LIMIT
    return isinstance(value, kind)


def _shown(value: Any) -> str:
    return repr(value)[:40]


def strings(document: Any, name: str) -> list[str] | None:
    """Return a list of strings, None where it is null.

    :raises WireError: it is something else
    """
    found: list[str] | None = field(document, name, list)
    if found is not None and not all(isinstance(one, str) for one in found):
        raise WireError(f'{name}: not all are strings')
    return found


def reasons(document: Any, name: str) -> dict[str, str]:
    """Return an object of strings, empty where it is null.

    :raises WireError: it is something else
    """
    found = field(document, name, dict) or {}
    if not all(isinstance(one, str) for one in found.values()):
        raise WireError(f'{name}: not all are strings')
    return dict(found)


def name_of(document: Any) -> str:
    """Return the name in the metadata of a v1 object."""
    name: str = field(field(document, 'metadata', dict) or {}, 'name', str)
    return name


def items(document: Any, name: str) -> list[dict[str, Any]] | None:
    """Return the objects of a NodeList; None where there is no list."""
    listed = field(document, name, dict)
    if listed is None:
        return None
    found = field(listed, 'items', list) or []
    if not all(isinstance(one, dict) for one in found):
        raise WireError(f'{name}.items: not all are objects')
    return list(found)


class FilterReply(NamedTuple):
    """What a filter verb answers.

    :ivar nodes: names of the node objects, None for no list
    """

    nodes: list[str] | None
    node_names: list[str] | None
    failed: dict[str, str]
    unresolvable: dict[str, str]
    error: str


def filter_reply(document: Any) -> FilterReply:
    """Read the answer of a filter verb.

    :raises WireError: it is none
    """
    if document is None:
        return FilterReply(None, None, {}, {}, '')
    listed = items(document, 'Nodes')
    return FilterReply(
        None if listed is None else [name_of(one) for one in listed],
        strings(document, 'NodeNames'),
        reasons(document, 'FailedNodes'),
        reasons(document, 'FailedAndUnresolvableNodes'),
        field(document, 'Error', str),
    )


def scores(document: Any) -> dict[str, int]:
    """Read the answer of a prioritize verb; a host twice has the sum.

    :raises WireError: it is no list of hosts and whole numbers
    """
    if document is None:
        return {}
    if not isinstance(document, list):
        raise WireError('scores: expected a list')
    found: dict[str, int] = {}
    for one in document:
        host = field(one, 'Host', str)
        found[host] = found.get(host, 0) + field(one, 'Score', int)
    return found


def error_of(document: Any) -> str:
    """Read the answer of a bind verb.

    :raises WireError: it is none
    """
    return '' if document is None else str(field(document, 'Error', str))


class Victims(NamedTuple):
    """Pods to evict from one node.

    :ivar pods: their uids
    """

    pods: list[str]
    violations: int


def victims(document: Any) -> dict[str, Victims]:
    """Read the answer of a preempt verb.

    :raises WireError: it is none
    """
    if document is None:
        return {}
    return _victims(
        document, 'NodeNameToMetaVictims', lambda pod: field(pod, 'UID', str)
    )


def _victims(
    document: Any, name: str, uid_of: Callable[[Any], str]
) -> dict[str, Victims]:
    found = {}
    for node, one in (field(document, name, dict) or {}).items():
        if one is None:
            found[node] = Victims([], 0)
            continue
        pods = [uid_of(pod) for pod in field(one, 'Pods', list) or []]
        found[node] = Victims(pods, field(one, 'NumPDBViolations', int))
    return found


def asked_victims(document: Any) -> dict[str, Victims]:
    """Read the candidates of a preempt request, in either form.

    :raises WireError: it is none
    """
    if field(document, 'NodeNameToMetaVictims', dict) is not None:
        return victims(document)
    return _victims(
        document,
        'NodeNameToVictims',
        lambda pod: str(field(field(pod, 'metadata', dict) or {}, 'uid', str)),
    )


def meta_victims(
    found: Mapping[str, Victims], nodes: Iterable[str]
) -> dict[str, Any]:
    """Return the answer of a preempt verb that keeps some nodes."""
    return {
        'NodeNameToMetaVictims': {
            node: {
                'Pods': [{'UID': uid} for uid in found[node].pods],
                'NumPDBViolations': found[node].violations,
            }
            for node in nodes
        }
    }
