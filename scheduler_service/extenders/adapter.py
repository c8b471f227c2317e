"""Builds the dispatcher of extender calls from options and policy file."""

from __future__ import annotations

import functools
import logging
import pathlib
from typing import Any

from scheduler_service import errors
from scheduler_service.extenders import policy_file
from scheduler_service.extenders.dispatcher import (
    ExtenderDispatcher,
    ExtenderOptions,
)
from scheduler_service.plan import Policy

LOG = logging.getLogger(__name__)


def policy(conf: Any) -> Policy:
    """Return the policy file's filters, weighers and extenders.

    :raises ConfigurationError: the file is unreadable or invalid
    """
    group = conf.extender
    path = group.policy_file
    try:
        text = pathlib.Path(path).read_bytes()
    except OSError as fault:
        raise errors.ConfigurationError(
            f'[extender] policy_file cannot be read: {fault}'
        ) from None
    parsed = policy_file.read(text, path)
    for place in parsed.unknown:
        LOG.warning('%s: %s: unknown key, ignored', path, place)
    if conf.compute.use_placement and any(
        extender.bind_verb for extender in parsed.extenders
    ):
        raise errors.ConfigurationError(
            'An extender with a bindVerb cannot be used with '
            '[compute] use_placement'
        )
    filters = weighers = None
    multipliers: dict[str, Any] = {}
    if parsed.predicates is not None:
        filters = policy_file.filters(parsed.predicates)
    if parsed.priorities is not None:
        weighers, multipliers = policy_file.weighers(parsed.priorities)
    dispatcher = None
    if parsed.extenders:
        how = ExtenderOptions(group.domain, group.threads, group.max_nodes)
        dispatcher = functools.partial(
            ExtenderDispatcher, parsed.extenders, how
        )
    return Policy(filters, weighers, multipliers, dispatcher)
