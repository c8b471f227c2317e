"""A scheduler as the options say."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import random
from typing import Any

from scheduler_service import conf as options
from scheduler_service import errors, plugins
from scheduler_service.engine import legacy_policy, pod_places
from scheduler_service.engine.extenders import ExtenderOptions
from scheduler_service.engine.external import ExternalOptions, HostOrderer
from scheduler_service.engine.options import EngineOptions
from scheduler_service.engine.pod_places import PodPlaces
from scheduler_service.engine.pod_resources import OfferedResources
from scheduler_service.engine.pod_use import PodUse
from scheduler_service.engine.pods import PodEvaluator
from scheduler_service.engine.scheduler import Scheduler
from scheduler_service.engine.sent_nodes import UnknownNodes
from scheduler_service.extender import config
from scheduler_service.pipeline import HostPipeline, PoolPipeline
from scheduler_service.pipeline.cache import SearchCache
from scheduler_service.settings import Settings
from scheduler_service.store.connection import Store

LOG = logging.getLogger(__name__)


def build(
    conf: Any, store: Store, rng: random.Random | None = None
) -> Scheduler:
    """Return a scheduler made by the options of *conf*.

    :raises ConfigurationError: a filter, a weigher or the policy file does
        not load
    """
    settings = options.settings(conf)
    policy = policy_of(conf)
    pools = PoolPipeline(
        plugins.pool_filters(conf.pool_scheduler.scheduler_filters), settings
    )
    fields = dataclasses.fields(EngineOptions)
    engine = EngineOptions(**{f.name: conf.scheduler[f.name] for f in fields})
    scheduler = Scheduler(
        store, host_pipeline(conf, settings, policy), pools, engine, rng
    )
    if policy.extenders:
        group = conf.extender
        scheduler.extend(
            policy.extenders,
            ExtenderOptions(
                domain=group.domain,
                threads=group.threads,
                max_nodes=group.max_nodes,
            ),
        )
    return scheduler


def pod_evaluator(
    conf: Any, scheduler: Scheduler, use: PodUse, unknown: UnknownNodes
) -> PodEvaluator:
    """Return what judges nodes for pods.

    :param use: what pods use
    :param unknown: what becomes of nodes that the store lacks
    :raises ConfigurationError: a filter or weigher does not load
    """
    group = conf.extender
    counted = conf.kubernetes.enabled
    by_load = group.load_weighers == 'always' or (
        counted and group.load_weighers == 'counted'
    )
    filters = plugins.host_filters(
        conf.filter_scheduler.available_filters, group.enabled_filters
    )
    weighers = plugins.host_weighers(group.weight_classes)
    settings = options.settings(conf)
    pipeline = HostPipeline(
        [*filters, OfferedResources()],
        [one for one in weighers if not pod_places.looks_at_load(one)],
        settings,
        check_room=False,
    )
    scoring = pod_places.load_scoring(
        weighers if by_load else (), settings, group.score_scale == 'range'
    )
    places = PodPlaces(use, scoring, group.domain, settings, counted)
    return PodEvaluator(pipeline, scheduler.snapshot, places, unknown)


def host_orderer(conf: Any, scheduler: Scheduler) -> HostOrderer:
    """Return what orders hosts that a compute service sends.

    :raises ConfigurationError: a filter or weigher does not load
    """
    group, ours = conf.filter_scheduler, conf.compute
    pipeline = HostPipeline(
        plugins.host_filters(group.available_filters, group.enabled_filters),
        plugins.host_weighers(group.weight_classes),
        options.settings(conf),
        check_room=False,
    )
    return HostOrderer(
        pipeline,
        scheduler.snapshot,
        scheduler.recorder.put,
        ExternalOptions(
            ours.external_weight_multiplier,
            ours.external_unknown_hosts == 'last',
        ),
    )


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
    weighers = plugins.host_weighers(group.weight_classes)
    if policy.priorities is not None:
        names, multipliers = legacy_policy.weighers(policy.priorities)
        weighers = plugins.host_weighers(names)
        settings = dataclasses.replace(settings, **multipliers)
    return HostPipeline(
        plugins.host_filters(group.available_filters, enabled),
        weighers,
        settings,
        cache=SearchCache() if group.search_cache else None,
    )
