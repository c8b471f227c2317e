"""Extenders that are called, as the options and the policy file say."""

from __future__ import annotations

import functools
import logging
import pathlib
from typing import Any

from scheduler_service import errors
from scheduler_service.engine.plan import Policy
from scheduler_service.extenders import config, legacy_policy
from scheduler_service.extenders.dispatcher import (
    ExtenderDispatcher,
    ExtenderOptions,
)

LOG = logging.getLogger(__name__)


def policy(conf: Any) -> Policy:
    """Return what the policy file of *conf* says.

    :raises ConfigurationError: it cannot be read, or cannot be followed
    """
    group = conf.extender
    path = group.policy_file
    try:
        text = pathlib.Path(path).read_bytes()
    except OSError as fault:
        raise errors.ConfigurationError(
            f'[extender] policy_file cannot be read: {fault}'
        ) from None
    read = config.read(text, path)
    for place in read.unknown:
        LOG.warning('%s: %s: unknown key, ignored', path, place)
    if conf.compute.use_placement and any(
        extender.bind_verb for extender in read.extenders
    ):
        raise errors.ConfigurationError(
            'An extender with a bindVerb cannot be used with '
            '[compute] use_placement'
        )
    filters = weighers = None
    multipliers: dict[str, Any] = {}
    if read.predicates is not None:
        filters = legacy_policy.filters(read.predicates)
    if read.priorities is not None:
        weighers, multipliers = legacy_policy.weighers(read.priorities)
    dispatcher = None
    if read.extenders:
        how = ExtenderOptions(group.domain, group.threads, group.max_nodes)
        dispatcher = functools.partial(ExtenderDispatcher, read.extenders, how)
    return Policy(filters, weighers, multipliers, dispatcher)
