"""The host filter ComputeCapabilitiesFilter."""

from __future__ import annotations

from typing import Any

import numpy as np

from scheduler_service import specops
from scheduler_service.columns.dictionary import DictionaryColumn, Mask
from scheduler_service.columns.table import HostTable, decoded
from scheduler_service.columns.topology import EACH_TIME, Key
from scheduler_service.filters import host_attributes
from scheduler_service.filters.base import (
    REQUIREMENT,
    UNREADABLE,
    HostFilter,
    where_readable,
)
from scheduler_service.model import Request
from scheduler_service.model.requirements.specs import reading, spec_path
from scheduler_service.settings import Settings

Path = tuple[str, ...]
CapabilitySpec = tuple[Path, str, bool]
SCOPE = 'capabilities'
_ADDRESS_BITS = 'hw:maxphysaddr_bits'
# Characters of a host's value that a reason quotes.
_MOST_SHOWN = 200
_NUMERIC_OPERATORS: dict[str, Any] = {
    '=': np.greater_equal,
    '==': np.equal,
    '!=': np.not_equal,
    '>=': np.greater_equal,
    '<=': np.less_equal,
}


class ComputeCapabilitiesFilter(HostFilter):
    """Passes hosts whose capabilities match every extra spec.

    The key of an extra spec with the scope ``capabilities:`` is a path: an
    attribute of the host or one of its ``stats``, and keys within it. A host
    without it fails, and so does one whose value is no number where numbers
    are compared. An extra spec without a scope counts where the host has
    such an attribute; other scopes are ignored. Requirements use the
    operators of extra specs.
    """

    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        passed: Mask | None = None
        for path, requirement, scoped in _capability_specs(request):
            key = ':'.join((SCOPE, *path) if scoped else path)
            if key not in request.flavor.extra_specs:
                key = _ADDRESS_BITS
            with reading(spec_path(key), REQUIREMENT, requirement):
                matches = _matches(table, path, requirement, settings)
            if not scoped:
                present = host_attributes.has_attribute(
                    table, path[0], settings
                )
                matches = matches | ~present
            passed = matches if passed is None else passed & matches
        return passed

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        specs = _capability_specs(request)
        if not specs:
            return None
        if any(host_attributes.follows_load(path[0]) for path, _, _ in specs):
            return EACH_TIME
        return tuple(specs)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        failing = []
        for path, requirement, scoped in _capability_specs(request):
            matches = _matches(table, path, requirement, settings)
            present = host_attributes.has_attribute(table, path[0], settings)
            if not matches[row] and (scoped or present[row]):
                name = f'{":".join(path)} {requirement}'
                column, keys = _values(table, path, settings)
                value = _value_at(column.at(row), keys)
                try:
                    _value_matches(value, (), requirement)
                except specops.NotComparableError as fault:
                    return f'{UNREADABLE}{name}: {fault}'
                has = 'none' if value is None else str(value)[:_MOST_SHOWN]
                failing.append(f'{name} (it has {has})')
        return f'the host does not match {"; ".join(failing)}'


def _capability_specs(request: Request) -> list[CapabilitySpec]:
    """Return (path, requirement, whether scoped) of the specs that count."""
    specs: list[CapabilitySpec] = []
    for key, requirement in request.flavor.extra_specs.items():
        path: Path = tuple(key.split(':'))
        if key == _ADDRESS_BITS:
            path = (SCOPE, 'cpu_info', 'maxphysaddr', 'bits')
            requirement = f'>= {requirement}'
        if len(path) == 1:
            specs.append((path, requirement, False))
        elif path[0] == SCOPE:
            specs.append((path[1:], requirement, True))
    return specs


def _matches(
    table: HostTable, path: Path, requirement: str, settings: Settings
) -> Mask:
    """Return bool[n]: hosts that have the path, with a value that matches."""
    words = requirement.split()
    if len(path) == 1 and len(words) > 1 and words[0] in _NUMERIC_OPERATORS:
        numbers = host_attributes.column(table, path[0], settings)
        if isinstance(numbers, np.ndarray):
            mask: Mask = _NUMERIC_OPERATORS[words[0]](numbers, float(words[1]))
            return mask
    column, keys = _values(table, path, settings)
    return column.mask_where(
        where_readable(
            lambda value: _value_matches(value, keys, requirement),
            (specops.NotComparableError,),
        )
    )


def _values(
    table: HostTable, path: Path, settings: Settings
) -> tuple[DictionaryColumn, Path]:
    """Return an attribute, or ``stats``, and the path of keys within it."""
    column = host_attributes.dictionary_column(table, path[0], settings)
    if column is None:
        return decoded(table, 'stats'), path
    return column, path[1:]


def _value_matches(value: Any, keys: Path, requirement: str) -> bool:
    """Return whether the value under a path of keys matches.

    :raises NotComparableError: the value is not a number as required
    """
    value = _value_at(value, keys)
    return value is not None and specops.match(str(value), requirement)


def _value_at(value: Any, keys: Path) -> Any:
    """Return the value under a path of keys; None: there is none."""
    try:
        for key in keys:
            value = host_attributes.value_at(value, key)
    except LookupError:
        return None
    return value
