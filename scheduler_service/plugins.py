"""Loads the plug-ins that are configured; an unknown name is an error.

Built-in plug-ins come from one table for each kind, other plug-ins by dotted
path or entry point. Paths of a compute service's configuration files stand for
our own. Called by the main thread, before the engine starts.
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
    :raises FilterNotFound: a path cannot be loaded, or names are unknown; the
        error lists all of them, and the names that are available
    """
    universe: dict[str, Any] = {}
    for path in available:
        for kind in _classes(path):
            universe[_name(kind)] = kind
    universe.update(_entry_points(HOST_NAMESPACE))
    return [_host_filter(kind) for kind in _pick(universe, enabled, 'filter')]


def pool_filters(enabled: Sequence[str]) -> list[type[PoolFilter]]:
    """Return the classes of the enabled pool filters in order.

    :raises FilterNotFound: a name is unknown, or cannot be loaded
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
    :raises FilterNotFound: a weigher is unknown, or cannot be loaded
    """
    universe: dict[str, Any] = {kind.name: kind for kind in weighers.BUILT_IN}
    universe.update(_entry_points(WEIGHER_NAMESPACE))
    selected: dict[str, Any] = {}
    for name in configured:
        kinds = (
            _classes(name)
            if '.' in name
            else _pick(universe, [name], 'weigher')
        )
        selected.update((_name(kind), kind) for kind in kinds)
    return [kind() for kind in selected.values()]


def _pick(
    universe: Mapping[str, Any], names: Sequence[str], what: str
) -> list[Any]:
    """Return the plug-ins with these names.

    :param what: the kind of plug-in, for the error
    :raises FilterNotFound: lists every unknown name, with the closest match
    """
    unknown = [name for name in names if name not in universe]
    if unknown:
        described = []
        for name in unknown:
            close = difflib.get_close_matches(name, universe, 1)
            hint = f' (did you mean {close[0]}?)' if close else ''
            described.append(f'{name}{hint}')
        raise errors.FilterNotFound(
            f'Unknown {what}: {", ".join(described)}. '
            f'Available: {", ".join(sorted(universe))}',
            names=unknown,
            available=sorted(universe),
        )
    kinds = (universe[name] for name in names)
    return [
        kind.load() if isinstance(kind, metadata.EntryPoint) else kind
        for kind in kinds
    ]


def _entry_points(namespace: str) -> dict[str, metadata.EntryPoint]:
    """Return the entry points of a namespace; they are loaded when enabled.

    Those of this package are left out: the tables have its plug-ins.
    """
    return {
        point.name: point
        for point in metadata.entry_points(group=namespace)
        if not point.value.startswith('scheduler_service.')
    }


def _classes(path: str) -> list[Any]:
    """Return the class at a dotted path, or the classes of a function.

    :raises FilterNotFound: it cannot be imported
    """
    real = _ALIASES.get(path, path)
    module, _, name = real.rpartition('.')
    try:
        target = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as fault:
        raise errors.FilterNotFound(
            f'{path} cannot be loaded: {fault}', names=[path]
        ) from fault
    if inspect.isclass(target):
        return [target]
    try:
        return list(target())
    except Exception as fault:
        raise errors.FilterNotFound(
            f'{path} is neither a class nor a function that returns classes: '
            f'{fault}',
            names=[path],
        ) from fault


def _name(kind: Any) -> str:
    return str(getattr(kind, 'name', '') or kind.__name__)


def _host_filter(kind: Any) -> HostFilter:
    """Return a filter of a class; adapt a filter with ``host_passes``.

    :raises FilterNotFound: it is not a host filter
    """
    plugin = kind()
    if isinstance(plugin, HostFilter):
        return plugin
    if callable(getattr(plugin, 'host_passes', None)):
        return AdaptedHostFilter(plugin)
    raise errors.FilterNotFound(
        f'{_name(kind)} is not a host filter: it has neither mask nor '
        'host_passes',
        names=[_name(kind)],
    )
