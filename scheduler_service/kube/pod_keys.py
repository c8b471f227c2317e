"""What a pod asks for, as text: pods with one text get one request.

A kube-scheduler asks about thousands of pods that differ in nothing but
their names. Stateless.
"""

from __future__ import annotations

from typing import Any

# What ``reading`` reads, by where it is; spelled otherwise it is valid, too.
_POD = ('metadata', 'spec')
_METADATA = ('namespace', 'annotations', 'labels')
_SPEC = ('nodeSelector', 'containers', 'initContainers', 'resources',
         'overhead')  # fmt: skip
_CONTAINER = ('resources', 'restartPolicy')
# For each of these: keys that need no second look, to a limit of both their
# number and their length.
_SEEN: dict[tuple[str, ...], set[str]] = {
    names: set(names) for names in (_POD, _METADATA, _SPEC, _CONTAINER)
}
_MOST_SEEN = 1000
_LONGEST_SEEN = 64


class _Unusual(Exception):
    """Something is not spelled, or not of the type, as is usual."""


def key_of(pod: Any, domain: str) -> str | None:
    """Return a text that is the same only if the request made of a pod is.

    None if the pod is unusual, such as with keys in another case: it has to
    be read to know.

    :param domain: of the annotations and labels that count
    """
    try:
        metadata, spec = _parts(pod, _POD)
        namespace, *ours = _parts(metadata, _METADATA)
        selector, containers, first, whole, overhead = _parts(spec, _SPEC)
        return repr(
            (
                namespace,
                [_with(domain, each) for each in ours],
                selector,
                _containers(containers),
                _containers(first),
                whole,
                overhead,
            )
        )
    except _Unusual:
        return None


def _parts(document: Any, names: tuple[str, ...]) -> list[Any]:
    """Return some fields of an object, None for those that it lacks."""
    if document is None:
        return [None] * len(names)
    if not isinstance(document, dict):
        raise _Unusual
    seen = _SEEN[names]
    if not document.keys() <= seen:
        read = {name.lower() for name in names}
        for key in document.keys() - seen:
            if key.lower() in read:
                raise _Unusual
            if len(seen) < _MOST_SEEN and len(key) <= _LONGEST_SEEN:
                seen.add(key)
    return list(map(document.get, names))


def _with(domain: str, values: Any) -> list[tuple[str, Any]]:
    if values is None:
        return []
    if not isinstance(values, dict):
        raise _Unusual
    ours = f'{domain}/'
    return [item for item in values.items() if ours in item[0]]


def _containers(listed: Any) -> list[list[Any]]:
    if listed is None:
        return []
    if not isinstance(listed, list):
        raise _Unusual
    return [_parts(one, _CONTAINER) for one in listed]
