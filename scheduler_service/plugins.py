"""Loads the plug-ins that are configured; an unknown name is an error.

Built-in plug-ins come from one table for each kind, other plug-ins by dotted
path or entry point. Classes of a compute service stand for our own with the
same name, whether or not it is installed. Called by the main thread, before
the engine starts.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

from scheduler_service import errors, weighers
from scheduler_service.engine.cycle import CYCLE
from scheduler_service.filters import hosts, pools
from scheduler_service.filters.hosts import AdaptedHostFilter, HostFilter
from scheduler_service.filters.pools import PoolFilter
from scheduler_service.stages import ReservingStage
from scheduler_service.weighers import Weigher

LOG = logging.getLogger(__name__)

HOST_NAMESPACE = 'scheduler_service.filters.hosts'
WEIGHER_NAMESPACE = 'scheduler_service.weighers'
STAGE_NAMESPACE = 'scheduler_service.stages'
_STAGE = re.compile(r'(\S+)\s+after=(\S+)')
# The stages that a plug-in's may follow.
_PLACES = ('claim', 'complete', 'bind')
_STAGE_NAME_LENGTH = 64
_FUNCTIONS: dict[str, Any] = {
    'nova.scheduler.filters.all_filters': hosts.all_filters,
    'nova.scheduler.filters.standard_filters': hosts.all_filters,
    'nova.scheduler.weights.all_weighers': weighers.all_weighers,
}
_FOREIGN: dict[str, dict[str, Any]] = {
    'nova.scheduler.filters': {kind.name: kind for kind in hosts.BUILT_IN},
    'nova.scheduler.weights': {kind.name: kind for kind in weighers.BUILT_IN},
}


def host_filters(
    available: Iterable[str], enabled: Sequence[str]
) -> list[HostFilter]:
    """Return the enabled host filters in order.

    :param available: dotted paths of classes, or of functions returning them
    :param enabled: names, or such paths
    :raises FilterNotFound: a path cannot be loaded, or names are unknown; the
        error lists all of them, and the names that are available
    """
    universe: dict[str, Any] = {}
    for path in available:
        kinds = _classes(path, 'available_filters: ')
        if len(kinds) == 1 and kinds[0] in hosts.BUILT_IN:
            LOG.warning(
                'available_filters: %s is built in: it needs no entry beside '
                'scheduler_service.filters.hosts.all_filters',
                path,
            )
        universe.update((_name(kind), kind) for kind in kinds)
    universe.update(_entry_points(HOST_NAMESPACE))
    kinds = _pick(universe, enabled, 'filter', hosts.BUILT_IN)
    return [_host_filter(kind) for kind in kinds]


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
    selected = {
        _name(kind): kind for kind in _pick(universe, configured, 'weigher')
    }
    for name, kind in selected.items():
        if not (inspect.isclass(kind) and issubclass(kind, Weigher)):
            raise errors.FilterNotFound(
                f'{name} is not a weigher of this service: it does not extend '
                'scheduler_service.weighers.Weigher',
                names=[name],
            )
    return [kind() for kind in selected.values()]


class StagePlugin(NamedTuple):
    """A stage that is configured.

    :ivar after: name of the stage that it follows
    """

    name: str
    after: str
    kind: type[ReservingStage]


def stages(configured: Sequence[str]) -> list[StagePlugin]:
    """Return the configured stages in order.

    :param configured: ``NAME after=PLACE`` of each
    :raises ConfigurationError: not of this form, of an unknown place, or named
        twice
    :raises FilterNotFound: a stage is unknown, or cannot be loaded
    """
    found: list[StagePlugin] = []
    universe = _entry_points(STAGE_NAMESPACE)
    for text in configured:
        parts = _STAGE.fullmatch(text.strip())
        if parts is None:
            raise errors.ConfigurationError(
                f'{text} is not of the form "NAME after=PLACE"'
            )
        wanted, after = parts.groups()
        kinds = _pick(universe, [wanted], 'stage')
        kind = kinds[0] if len(kinds) == 1 else None
        if (
            not inspect.isclass(kind)
            or not issubclass(kind, ReservingStage)
            or inspect.isabstract(kind)
        ):
            raise errors.FilterNotFound(
                f'{wanted} is not a stage: it does not extend '
                'scheduler_service.stages.ReservingStage, or lacks one of '
                'document, make and undo',
                names=[wanted],
            )
        name = wanted if wanted in universe else kind.__name__
        places = *_PLACES, *(stage.name for stage in found)
        if name in (*CYCLE, *places):
            raise errors.ConfigurationError(f'There are two stages {name}')
        if len(name) > _STAGE_NAME_LENGTH:
            raise errors.ConfigurationError(f'The name {name} is too long')
        if after not in places:
            raise errors.ConfigurationError(
                f'{text}: a stage can be after {", ".join(places)}'
            )
        found.append(StagePlugin(name, after, kind))
    return found


def _pick(
    universe: Mapping[str, Any],
    names: Sequence[str],
    what: str,
    built_in: Iterable[Any] = (),
) -> list[Any]:
    """Return the plug-ins with these names, or at these dotted paths.

    :param what: the kind of plug-in, for the error
    :param built_in: those that come with the service
    :raises FilterNotFound: lists every unknown name, with the closest match
    """
    unknown = [
        name for name in names if name not in universe and '.' not in name
    ]
    if unknown:
        known = {kind.name for kind in built_in}
        described = []
        for name in unknown:
            close = difflib.get_close_matches(name, universe, 1)
            hint = f' (did you mean {close[0]}?)' if close else ''
            if name in known:
                hint = ' (it is built in, but available_filters leaves it out)'
            described.append(f'{name}{hint}')
        raise errors.FilterNotFound(
            f'Unknown {what}: {", ".join(described)}. '
            f'Available: {", ".join(sorted(universe))}',
            names=unknown,
            available=sorted(universe),
        )
    kinds: list[Any] = []
    for name in names:
        kind = universe.get(name)
        if kind is None:
            kinds += _classes(name)
        elif isinstance(kind, metadata.EntryPoint):
            kinds.append(kind.load())
        else:
            kinds.append(kind)
    return kinds


def _entry_points(namespace: str) -> dict[str, metadata.EntryPoint]:
    """Return the entry points of a namespace; they are loaded when enabled.

    Those of this package are left out: the tables have its plug-ins.
    """
    return {
        point.name: point
        for point in metadata.entry_points(group=namespace)
        if not point.value.startswith('scheduler_service.')
    }


def _classes(path: str, option: str = '') -> list[Any]:
    """Return the class at a dotted path, or the classes of a function.

    :param option: what errors begin with
    :raises FilterNotFound: it cannot be imported
    """
    target = _FUNCTIONS.get(path) or _namesake(path)
    if target is None:
        module, _, name = path.rpartition('.')
        try:
            target = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as fault:
            raise errors.FilterNotFound(
                f'{option}{path} cannot be loaded: {fault}', names=[path]
            ) from fault
    if inspect.isclass(target):
        return [target]
    try:
        return [
            _namesake(f'{kind.__module__}.{kind.__name__}') or kind
            for kind in target()
        ]
    except Exception as fault:
        raise errors.FilterNotFound(
            f'{option}{path} is neither a class nor a function that returns '
            f'classes: {fault}',
            names=[path],
        ) from fault


def _namesake(path: str) -> Any:
    """Return our class for one of a compute service; None: we have none."""
    package, _, name = path.rpartition('.')
    for foreign, kinds in _FOREIGN.items():
        if f'{package}.'.startswith(f'{foreign}.'):
            return kinds.get(name)
    return None


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
