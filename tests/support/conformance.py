"""One conformance case through the pipeline that the daemon uses.

Options are set on a configuration object, plug-ins are found by their
configured names, the inventory becomes a snapshot, the request is parsed:
all by the code that serves requests.
"""

from __future__ import annotations

import copy
import functools
import json
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np

from scheduler_service import conf as options
from scheduler_service import errors, plugins, request_filters
from scheduler_service.cmd import adapters
from scheduler_service.columns import HostTable, build_table
from scheduler_service.columns.build import placed
from scheduler_service.filters import pools as pool_table
from scheduler_service.filters.base import UNREADABLE
from scheduler_service.model import Inventory, documents
from scheduler_service.pipeline import HostPipeline, PoolPipeline
from scheduler_service.pipeline.weighing import Weighing, raw_weights
from scheduler_service.request_context import RequestContext

# Faults of Python or a library in the reference: any named refusal will do.
ANY_REFUSAL = frozenset(
    (
        'ValueError',
        'TypeError',
        'KeyError',
        'IndexError',
        'AttributeError',
        'JSONDecodeError',
        'AddrFormatError',
    )
)


class HostVerdicts(dict[str, bool]):
    """Whether each host passes.

    :ivar unreadable: those that fail because of what they report
    """

    unreadable: list[str]


def read(path: str) -> Iterator[dict[str, Any]]:
    """Yield the cases of one file, a JSON document a line."""
    with open(path, encoding='utf-8') as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def run(case: dict[str, Any]) -> str:
    """Run one case; return '' where it passes, else what differs."""
    expected = case['expected']
    wanted = expected.get('error') if isinstance(expected, dict) else None
    try:
        found = _verdict(case)
    except errors.SchedulerError as error:
        if wanted == error.name or wanted in ANY_REFUSAL:
            return ''
        return f'refused with {error.name}: {error}; expected {expected}'
    if wanted in ANY_REFUSAL and getattr(found, 'unreadable', None):
        # The reference fails the request for what one host reports; here
        # that host does not pass, with the fault as its reason.
        return ''
    if wanted:
        return f'found {found}, expected the error {wanted}'
    return _difference(found, expected)


def _verdict(case: dict[str, Any]) -> Any:
    conf = _defaults()
    what = case.get('filter') or case['weigher']
    chosen = dict(case.get('options', {}))
    if what == 'map_az_to_placement_aggregate':
        chosen['scheduler.query_placement_for_availability_zone'] = True
    try:
        for name, value in chosen.items():
            group, option = _place(name)
            conf.set_override(option, value, group)
        return _verdict_under(conf, what, case)
    finally:
        for group, option in map(_place, chosen):
            conf.clear_override(option, group)


@functools.cache
def _defaults() -> Any:
    """Return options with their defaults; each case sets its own."""
    conf = adapters.new_config()
    options.parse(conf, [], default_config_files=[], default_config_dirs=[])
    return conf


def _verdict_under(conf: Any, what: Any, case: dict[str, Any]) -> Any:
    # Parsed, and not checked: the reference has numbers that are refused here.
    inventory = msgspec.convert(case['inventory'], Inventory)
    if 'pools' in case['inventory'] or what == 'PoolScheduler':
        return _pools(conf, case, what, inventory)
    table = build_table(
        list(enumerate(inventory.hosts)),
        inventory.aggregates,
        [placed(instance) for instance in inventory.instances],
        inventory.server_groups,
    )
    request = documents.request(case['request']).with_ids()
    if what in [one.__name__ for one in request_filters.BUILT_IN]:
        return _scope(conf, table, request)
    if 'weigher' in case:
        return _weights(conf, what, table, request)
    return _hosts(conf, what, table, request)


@functools.cache
def _place(name: str) -> tuple[str | None, str]:
    """Return group and name of an option whose group may be left out."""
    group, _, option = name.rpartition('.')
    if group:
        return group, option
    for place, opts in adapters.list_opts():
        if any(opt.dest == name for opt in opts):
            return place, name
    raise LookupError(name)


def _plugins(find: Callable[..., Any], *names: list[str]) -> list[Any]:
    """Return what *find* finds, each made anew.

    Finding looks through every package that is installed: done once for each
    list of names.
    """
    return [copy.copy(one) for one in _found(find, *map(tuple, names))]


@functools.cache
def _found(find: Callable[..., Any], *names: tuple[str, ...]) -> list[Any]:
    found: list[Any] = find(*map(list, names))
    return found


def _hosts(conf: Any, name: str, table: HostTable, request: Any) -> Any:
    available = conf.filter_scheduler.available_filters
    filters = _plugins(plugins.host_filters, available, [name])
    pipeline = HostPipeline(
        filters, [], options.settings(conf), check_room=False
    )
    request = request.offered_form(table.resources)
    for one, mask in pipeline.filter_results(table, request):
        if one is filters[0]:
            names = [table.host_at(row) for row in range(len(table))]
            found = HostVerdicts(zip(names, mask.tolist(), strict=True))
            found.unreadable = [
                names[row]
                for row in np.flatnonzero(~mask).tolist()
                if one.reason(
                    table, row, request, pipeline.settings
                ).startswith(UNREADABLE)
            ]
            return found
    raise LookupError(name)


def _weights(conf: Any, what: Any, table: HostTable, request: Any) -> Any:
    names = [what] if isinstance(what, str) else what
    weighers = _plugins(plugins.host_weighers, names)
    settings = options.settings(conf)
    hosts = [table.host_at(row) for row in range(len(table))]
    if isinstance(what, str):
        raw = raw_weights(weighers[0], table, slice(None), request, settings)
        values = np.zeros(len(table)) if raw is None else raw
        return dict(zip(hosts, values.tolist(), strict=True))
    mask = np.ones(len(table), np.bool_)
    weighing = Weighing(weighers, settings)
    terms = weighing.terms(table, request)
    ranking = weighing.rank(table, mask, request, terms)
    assert ranking is not None
    return {
        'weights': dict(zip(hosts, ranking.totals.tolist(), strict=True)),
        'order': [hosts[row] for row in ranking.best(len(table))],
    }


def _scope(conf: Any, table: HostTable, request: Any) -> Any:
    scope = request_filters.scope_of(
        request, table.topology.aggregates, options.settings(conf)
    )
    return {
        'query': scope.query(),
        'forbidden_aggregates': sorted(scope.forbidden_aggregates),
        'required_aggregates': [
            sorted(aggregate) for aggregate in scope.required_aggregates
        ],
    }


def _pools(conf: Any, case: dict[str, Any], what: str, inventory: Any) -> Any:
    names = {kind.__name__: kind.name for kind in pool_table.BUILT_IN}
    chain = (
        conf.pool_scheduler.scheduler_filters
        if what == 'PoolScheduler'
        else [names[what]]
    )
    pipeline = PoolPipeline(
        _plugins(plugins.pool_filters, chain), options.settings(conf)
    )
    caller = RequestContext.of(conf, case.get('context', {}))
    zone = documents.zone(case['request'])
    pools = {pool.id: pool for pool in inventory.pools}
    rng = random.Random(case['id'])
    if what == 'PoolScheduler':
        return [pipeline.choose(caller, pools, zone, rng).pool.id]
    left = pipeline.run_filters(caller, pools, zone, rng)[-1][1]
    return [pool.id for pool in left]


def _difference(found: Any, expected: Any) -> str:
    """Return what differs; empty where nothing does."""
    if 'one_of' in expected:
        good = len(found) == 1 and found[0] in expected['one_of']
        return '' if good else f'{found} is not one of {expected}'
    if 'weights' in expected:
        if found['order'] != expected['order']:
            return f'order {found["order"]} != {expected["order"]}'
        return _unlike(found['weights'], expected['weights'])
    if 'pools' in expected:
        return '' if found == expected['pools'] else f'{found} != {expected}'
    for key in ('query', 'forbidden_aggregates'):
        if key in expected:
            good = found[key] == expected[key]
            return '' if good else f'{found} != {expected}'
    if 'required_aggregates' in expected:
        both = found['required_aggregates'], expected['required_aggregates']
        one, two = (sorted(map(sorted, each)) for each in both)
        return '' if one == two else f'{found} != {expected}'
    return _unlike(found, expected)


def _unlike(found: dict[str, Any], expected: dict[str, Any]) -> str:
    if found.keys() != expected.keys():
        return f'hosts {sorted(found)} != {sorted(expected)}'
    bad = {
        host: (found[host], value)
        for host, value in expected.items()
        if not _same(found[host], value)
    }
    return f'found, expected: {bad}' if bad else ''


def _same(one: Any, two: Any) -> bool:
    if isinstance(two, bool):
        return one is two
    return math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-9)
