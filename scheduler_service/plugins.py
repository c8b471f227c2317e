"""From configured names to plug-ins; a name that does not load stops us.

Built-ins come from one table each, third parties by dotted path or entry
point. The names and paths of older configuration files are understood.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

from scheduler_service import errors, weighers
from scheduler_service.filters import pools
from scheduler_service.filters.hosts import AdaptedHostFilter, HostFilter
from scheduler_service.filters.pools import PoolFilter
from scheduler_service.weighers import Weigher

HOST_NAMESPACE = 'scheduler_service.filters.hosts'
WEIGHER_NAMESPACE = 'scheduler_service.weighers'
_OUR_FILTERS = 'scheduler_service.filters.hosts.all_filters'
_ALIASES = {
    'nova.scheduler.filters.all_filters': _OUR_FILTERS,
    'nova.scheduler.filters.standard_filters': _OUR_FILTERS,
    'nova.scheduler.weights.all_weighers': (
        'scheduler_service.weighers.all_weighers'
    ),
}


def host_filters(
    available: Iterable[str], enabled: Sequence[str]
) -> list[HostFilter]:
    """Return the enabled host filters in order.

    :param available: dotted paths of classes, or of functions returning them
    :raises FilterNotFound: a path or a name does not load; all bad names
        are told, and what there is
    """
    universe: dict[str, Any] = {}
    for path in available:
        for kind in _classes(path):
            universe[_name(kind)] = kind
    universe.update(_entry_points(HOST_NAMESPACE))
    return [_host_filter(kind) for kind in _pick(universe, enabled, 'filter')]


def pool_filters(enabled: Sequence[str]) -> list[type[PoolFilter]]:
    """Return the enabled pool filters in order.

    :raises FilterNotFound: a name does not load
    :raises NoFiltersConfigured: none is enabled
    """
    if not enabled:
        raise errors.NoFiltersConfigured()
    universe: dict[str, Any] = {kind.name: kind for kind in pools.BUILT_IN}
    for namespace in pools.NAMESPACES:
        universe.update(_entry_points(namespace))
    return _pick(universe, enabled, 'pool filter')


def host_weighers(configured: Sequence[str]) -> list[Weigher]:
    """Return the configured weighers in order.

    :param configured: names, or dotted paths of classes or functions
    :raises FilterNotFound: one does not load
    """
    universe: dict[str, Any] = {k.name: k for k in weighers.BUILT_IN}
    universe.update(_entry_points(WEIGHER_NAMESPACE))
    found: dict[str, Any] = {}
    for name in configured:
        kinds = (
            _classes(name)
            if '.' in name
            else _pick(universe, [name], 'weigher')
        )
        found.update((_name(kind), kind) for kind in kinds)
    return [kind() for kind in found.values()]


def _pick(
    universe: Mapping[str, Any], names: Sequence[str], what: str
) -> list[Any]:
    """Return the named ones, or tell every name that is not there."""
    bad = [name for name in names if name not in universe]
    if not bad:
        return [
            kind.load() if isinstance(kind, metadata.EntryPoint) else kind
            for kind in (universe[name] for name in names)
        ]
    told = []
    for name in bad:
        close = difflib.get_close_matches(name, universe, 1)
        hint = f' (did you mean {close[0]}?)' if close else ''
        told.append(f'{name}{hint}')
    raise errors.FilterNotFound(
        f'No such {what}: {", ".join(told)}. '
        f'There are: {", ".join(sorted(universe))}',
        names=bad,
        available=sorted(universe),
    )


def _entry_points(namespace: str) -> dict[str, metadata.EntryPoint]:
    """Return what packages register; loaded only when enabled."""
    return {
        point.name: point for point in metadata.entry_points(group=namespace)
    }


def _classes(path: str) -> list[Any]:
    """Return the class at a dotted path, or what a function there returns."""
    real = _ALIASES.get(path, path)
    module, _, name = real.rpartition('.')
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as fault:
        raise errors.FilterNotFound(
            f'{path} does not load: {fault}', names=[path]
        ) from fault
    return [found] if inspect.isclass(found) else list(found())


def _name(kind: Any) -> str:
    return str(getattr(kind, 'name', '') or kind.__name__)


def _host_filter(kind: Any) -> HostFilter:
    """Make a filter; one of another make is adapted if it can be."""
    made = kind()
    if isinstance(made, HostFilter):
        return made
    if callable(getattr(made, 'host_passes', None)):
        return AdaptedHostFilter(made)
    raise errors.FilterNotFound(
        f'{_name(kind)} is no host filter: it has neither mask nor '
        'host_passes',
        names=[_name(kind)],
    )
