"""A scheduler as the options say."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

from scheduler_service import conf as options
from scheduler_service import plugins
from scheduler_service.conf.database import timeouts
from scheduler_service.conf.filter_scheduler import GROUP
from scheduler_service.engine.health import Health
from scheduler_service.engine.ports import Stage
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.engine_config import EngineConfig, Policy
from scheduler_service.filters.hosts import HostFilter
from scheduler_service.pipeline import HostPipeline, PoolPipeline
from scheduler_service.pipeline.search_cache import SearchCache
from scheduler_service.scheduler import Scheduler
from scheduler_service.settings import EngineOptions
from scheduler_service.stages import MakeStages
from scheduler_service.store.connection import Store
from scheduler_service.store.workers.stage_undoer import StageUndoer
from scheduler_service.weighers import Weigher

# ``claim_timeout`` where the compute service is followed, in seconds: a caller
# without an answer for an hour does not build the instance any more.
_FOLLOWED_TIMEOUT_S = 3600.0


def build(
    conf: Any,
    store: Store,
    rng: random.Random | None = None,
    policy: Policy | None = None,
) -> Scheduler:
    """Return a scheduler made by the options of *conf*.

    :param policy: what the policy file says; None: there is none
    :raises ConfigurationError: a filter, a weigher or TLS material of an
        extender does not load
    """
    return Scheduler(store, engine_config(conf, policy), rng)


def engine_config(conf: Any, policy: Policy | None = None) -> EngineConfig:
    """Return what the options of *conf* make of the engine.

    :param policy: what the policy file says; None: there is none
    :raises ConfigurationError: a filter or a weigher does not load
    """
    policy = policy or Policy()
    settings = options.settings(conf)
    keeps = conf.filter_scheduler.search_cache
    hosts = HostPipeline(
        *plugged(conf, GROUP, policy.filters, policy.weighers),
        dataclasses.replace(settings, **policy.multipliers),
        cache=SearchCache() if keeps else None,
    )
    with options.place(conf, 'pool_scheduler', 'scheduler_filters'):
        pool_filters = plugins.pool_filters(
            conf.pool_scheduler.scheduler_filters
        )
    with options.place(conf, 'scheduler', 'stages'):
        own_stages = plugins.stages(conf.scheduler.stages)
    chosen = options.values(conf, EngineOptions)
    if conf.scheduler.claim_timeout is None:
        followed = conf.compute.api_database
        chosen.claim_timeout = _FOLLOWED_TIMEOUT_S if followed else 0.0
    return EngineConfig(
        hosts=hosts,
        pools=PoolPipeline(pool_filters, settings),
        options=chosen,
        stages=_all_stages(policy.stages, own_stages),
        timeouts=timeouts(conf),
    )


def _all_stages(
    of_policy: MakeStages | None, own: Sequence[plugins.StagePlugin]
) -> MakeStages:
    """Return what makes the stages of the policy file and of plug-ins."""

    def make(
        pipeline: HostPipeline,
        health: Health,
        queue: RequestQueue,
        undoer: StageUndoer,
    ) -> list[Stage]:
        parts = pipeline.settings, queue, undoer
        made = of_policy(pipeline, health, queue, undoer) if of_policy else ()
        plugged = [each.kind(each.name, each.after, *parts) for each in own]
        return [*made, *plugged]

    return make


def plugged(
    conf: Any,
    group: str = GROUP,
    enabled: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
) -> tuple[list[HostFilter], list[Weigher]]:
    """Return the filters and weighers that a group of options names.

    :param enabled: in place of ``enabled_filters``; None: that stays
    :param classes: in place of ``weight_classes``; None: that stays
    :raises ConfigurationError: a filter or a weigher does not load
    """
    available = conf.filter_scheduler.available_filters
    if enabled is None:
        enabled = conf[group].enabled_filters
    if classes is None:
        classes = conf[group].weight_classes
    with options.place(conf, group, 'enabled_filters'):
        filters = plugins.host_filters(available, enabled)
    with options.place(conf, group, 'weight_classes'):
        return filters, plugins.host_weighers(classes)
