"""Versioned objects as they travel: plain dicts, taken apart and made.

An object is ``{nova_object.name, nova_object.namespace, nova_object.version,
nova_object.data, nova_object.changes}``. A field that is not set is absent
from its data, a set is a list. Stateless; any thread may call it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_service import errors

_NAME = 'nova_object.name'
_NAMESPACE = 'nova_object.namespace'
_VERSION = 'nova_object.version'
_DATA = 'nova_object.data'
_CHANGES = 'nova_object.changes'
# Objects whose major version is not 1.
_MAJOR = {'Instance': '2', 'InstanceList': '2'}
_MAX_DEPTH = 32


def unwrap(value: Any, place: str = '', depth: int = 0) -> Any:
    """Return a value with every object in it replaced by its data.

    :param place: path of the value, for errors
    :raises InvalidRequest: an object has a version that is not known, or no
        data
    :raises PayloadTooLarge: nested too deeply
    """
    if depth > _MAX_DEPTH:
        raise errors.PayloadTooLarge(f'{place}: nested too deeply')
    if isinstance(value, list):
        return [
            unwrap(one, f'{place}[{index}]', depth + 1)
            for index, one in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    if _NAME in value:
        value = _data(value, place)
    return {
        key: unwrap(one, f'{place}.{key}'.lstrip('.'), depth + 1)
        for key, one in value.items()
    }


def named(value: Any, name: str, place: str) -> Any:
    """Return an object of a class, unwrapped.

    :raises InvalidRequest: it is none of this class
    """
    found = value.get(_NAME) if isinstance(value, dict) else None
    if found != name:
        what = type(value).__name__ if found is None else str(found)[:60]
        raise errors.InvalidRequest(
            f'{place}: expected an object {name}, got {what}', at=place
        )
    return unwrap(value, place)


def _data(value: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the data of an object, whose version is checked."""
    name = str(value[_NAME])[:60]
    version = str(value.get(_VERSION))[:20]
    major = _MAJOR.get(name, '1')
    if version.partition('.')[0] != major:
        raise errors.InvalidRequest(
            f'{place}: version {version} of the object {name} is not known, '
            f'only {major}.x',
            at=place,
        )
    data = value.get(_DATA)
    if not isinstance(data, dict):
        raise errors.InvalidRequest(
            f'{place}: the object {name} has no {_DATA}', at=place
        )
    return data


def wrap(name: str, version: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return an object, with all of its fields marked as changed."""
    return {
        _NAME: name,
        _NAMESPACE: 'nova',
        _VERSION: version,
        _DATA: data,
        _CHANGES: sorted(data),
    }
