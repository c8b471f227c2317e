"""A scheduler as the options say."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import random
from collections.abc import Sequence
from typing import Any

from scheduler_service import conf as options
from scheduler_service import errors, plugins
from scheduler_service.conf.database import timeouts
from scheduler_service.conf.filter_scheduler import GROUP
from scheduler_service.engine import legacy_policy, pod_places
from scheduler_service.engine.extenders import ExtenderOptions
from scheduler_service.engine.external import ExternalOptions, HostOrderer
from scheduler_service.engine.options import EngineOptions
from scheduler_service.engine.plan import Plan
from scheduler_service.engine.pod_compute import PodComputeFilter
from scheduler_service.engine.pod_places import PodPlaces
from scheduler_service.engine.pod_resources import OfferedResources
from scheduler_service.engine.pod_use import PodUse
from scheduler_service.engine.pods import PodEvaluator, PodPipeline
from scheduler_service.engine.scheduler import Scheduler
from scheduler_service.engine.sent_nodes import UnknownNodes
from scheduler_service.extender import config
from scheduler_service.filters.hosts import HostFilter
from scheduler_service.filters.hosts.compute_filter import ComputeFilter
from scheduler_service.pipeline import HostPipeline, PoolPipeline
from scheduler_service.pipeline.cache import SearchCache
from scheduler_service.settings import Settings
from scheduler_service.store.connection import Store
from scheduler_service.weighers import Weigher

LOG = logging.getLogger(__name__)
# ``claim_timeout`` where the compute service is followed, in seconds: who has
# no answer for so long does not build the instance any more.
_FOLLOWED_TIMEOUT_S = 3600.0


def build(
    conf: Any, store: Store, rng: random.Random | None = None
) -> Scheduler:
    """Return a scheduler made by the options of *conf*.

    :raises ConfigurationError: a filter, a weigher or the policy file does
        not load
    """
    made = plan(conf)
    scheduler = Scheduler(store, made.hosts, made.pools, made.options, rng)
    if made.extenders:
        scheduler.extend(made)
    return scheduler


def plan(conf: Any) -> Plan:
    """Return what the options of *conf* make of the engine.

    :raises ConfigurationError: a filter, a weigher or the policy file does
        not load
    """
    settings = options.settings(conf)
    policy = policy_of(conf)
    with options.place(conf, 'pool_scheduler', 'scheduler_filters'):
        pool_filters = plugins.pool_filters(
            conf.pool_scheduler.scheduler_filters
        )
    chosen = {
        field.name: conf.scheduler[field.name]
        for field in dataclasses.fields(EngineOptions)
    }
    if chosen['claim_timeout'] is None:
        followed = conf.compute.api_database
        chosen['claim_timeout'] = _FOLLOWED_TIMEOUT_S if followed else 0.0
    group = conf.extender
    return Plan(
        hosts=host_pipeline(conf, settings, policy),
        pools=PoolPipeline(pool_filters, settings),
        options=EngineOptions(**chosen),
        extenders=policy.extenders,
        asking=ExtenderOptions(
            domain=group.domain,
            threads=group.threads,
            max_nodes=group.max_nodes,
        ),
        timeouts=timeouts(conf),
    )


def counts_pods(conf: Any) -> bool:
    """Whether something says where the pods of a cluster are."""
    group = conf.extender
    recounted = bool(group.api_server) and group.count_interval > 0.0
    return bool(conf.kubernetes.enabled or recounted)


def pod_pipeline(conf: Any) -> PodPipeline:
    """Return what nodes are judged by for pods.

    :raises ConfigurationError: a filter or weigher does not load
    """
    group, available = conf.extender, conf.filter_scheduler.available_filters
    by_load = group.load_weighers == 'always' or (
        counts_pods(conf) and group.load_weighers == 'counted'
    )
    filters = [
        PodComputeFilter() if type(one) is ComputeFilter else one
        for one in _filters(conf, available, group.enabled_filters, 'extender')
    ]
    weighers = _weighers(conf, group.weight_classes, 'extender')
    settings = options.settings(conf)
    pipeline = HostPipeline(
        [*filters, OfferedResources()],
        [one for one in weighers if not pod_places.looks_at_load(one)],
        settings,
        check_room=False,
    )
    return PodPipeline(
        pipeline,
        pod_places.load_scoring(
            weighers if by_load else (), settings, group.score_scale == 'range'
        ),
    )


def pod_evaluator(
    conf: Any, scheduler: Scheduler, use: PodUse, unknown: UnknownNodes
) -> PodEvaluator:
    """Return what judges nodes for pods.

    :param use: what pods use
    :param unknown: what becomes of nodes that the store lacks
    :raises ConfigurationError: a filter or weigher does not load
    """
    by = pod_pipeline(conf)
    places = PodPlaces(
        use,
        by.scoring,
        conf.extender.domain,
        by.pipeline.settings,
        assuming=counts_pods(conf),
        waiting=conf.kubernetes.enabled,
    )
    return PodEvaluator(by.pipeline, scheduler.snapshot, places, unknown)


def order_pipeline(conf: Any) -> tuple[HostPipeline, ExternalOptions]:
    """Return what hosts are ordered by that a compute service sends.

    :raises ConfigurationError: a filter or weigher does not load
    """
    ours = conf.compute
    available = conf.filter_scheduler.available_filters
    return _without_room(conf, available, 'filter_scheduler'), ExternalOptions(
        ours.external_weight_multiplier, ours.external_unknown_hosts == 'last'
    )


def host_orderer(conf: Any, scheduler: Scheduler) -> HostOrderer:
    """Return what orders hosts that a compute service sends.

    :raises ConfigurationError: a filter or weigher does not load
    """
    pipeline, how = order_pipeline(conf)
    return HostOrderer(
        pipeline, scheduler.snapshot, scheduler.recorder.put, how
    )


def _without_room(
    conf: Any, available: Sequence[str], group: str
) -> HostPipeline:
    """Return a pipeline for hosts on which nothing is claimed.

    :param group: whose ``enabled_filters`` and ``weight_classes`` it has
    """
    return HostPipeline(
        _filters(conf, available, conf[group].enabled_filters, group),
        _weighers(conf, conf[group].weight_classes, group),
        options.settings(conf),
        check_room=False,
    )


def _filters(
    conf: Any, available: Sequence[str], enabled: Sequence[str], group: str
) -> list[HostFilter]:
    with options.place(conf, group, 'enabled_filters'):
        return plugins.host_filters(available, enabled)


def _weighers(conf: Any, names: Sequence[str], group: str) -> list[Weigher]:
    with options.place(conf, group, 'weight_classes'):
        return plugins.host_weighers(names)


def policy_of(conf: Any) -> config.Policy:
    """Return what the policy file says; nothing where none is named.

    :raises ConfigurationError: it cannot be read, or cannot be followed
    """
    path = conf.extender.policy_file
    if not path:
        return config.Policy()
    try:
        text = pathlib.Path(path).read_bytes()
    except OSError as fault:
        raise errors.ConfigurationError(
            f'[extender] policy_file cannot be read: {fault}'
        ) from None
    found = config.read(text, path)
    for place in found.unknown:
        LOG.warning('%s: %s: unknown key, ignored', path, place)
    return found


def host_pipeline(
    conf: Any, settings: Settings, policy: config.Policy
) -> HostPipeline:
    """Return the pipeline of hosts, by the options or by the policy file.

    :raises ConfigurationError: a filter or weigher does not load
    """
    group = conf.filter_scheduler
    enabled = group.enabled_filters
    if policy.predicates is not None:
        enabled = legacy_policy.filters(policy.predicates)
    names = group.weight_classes
    if policy.priorities is not None:
        names, multipliers = legacy_policy.weighers(policy.priorities)
        settings = dataclasses.replace(settings, **multipliers)
    return HostPipeline(
        _filters(conf, group.available_filters, enabled, GROUP),
        _weighers(conf, names, GROUP),
        settings,
        cache=SearchCache() if group.search_cache else None,
    )
