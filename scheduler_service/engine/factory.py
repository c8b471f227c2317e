"""A scheduler as the options say."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import random
from typing import Any

from scheduler_service import conf as options
from scheduler_service import errors, plugins
from scheduler_service.engine import legacy_policy
from scheduler_service.engine.extenders import ExtenderOptions
from scheduler_service.engine.external import ExternalOptions, HostOrderer
from scheduler_service.engine.options import EngineOptions
from scheduler_service.engine.pods import PodEvaluator
from scheduler_service.engine.scheduler import Scheduler
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


def pod_evaluator(conf: Any, scheduler: Scheduler) -> PodEvaluator:
    """Return what judges nodes for pods.

    :raises ConfigurationError: a filter or weigher does not load
    """
    group = conf.extender
    available = conf.filter_scheduler.available_filters
    pipeline = HostPipeline(
        plugins.host_filters(available, group.enabled_filters),
        plugins.host_weighers(group.weight_classes),
        options.settings(conf),
        check_room=False,
    )
    return PodEvaluator(pipeline, scheduler.snapshot, group.domain)


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
