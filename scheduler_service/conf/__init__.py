"""Options: one module a group, registered on the object that is handed in.

Nothing reads an option at import, and nothing below this floor reads one at
all: :func:`settings` makes the plain values that plug-ins get.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg
from oslo_db import options as db_options
from oslo_log import log

from scheduler_service.conf import (
    default,
    extender,
    filter_scheduler,
    http,
    metrics,
    pci,
    pool_scheduler,
    scheduler,
)
from scheduler_service.settings import Settings

PROJECT = 'scheduler_service'
MODULES = (
    default,
    extender,
    filter_scheduler,
    http,
    metrics,
    pci,
    pool_scheduler,
    scheduler,
)
_QUIET = ['amqp=WARN', 'kombu=WARN', 'sqlalchemy=WARN', 'alembic=WARN']


def new_config() -> Any:
    """Return a configuration object with every option registered."""
    conf = cfg.ConfigOpts()
    for module in MODULES:
        module.register_opts(conf)
    conf.register_opts(db_options.database_opts, group='database')
    log.register_options(conf)
    log.set_defaults(default_log_levels=log.get_default_log_levels() + _QUIET)
    return conf


def parse(conf: Any, args: Sequence[str], **kwargs: Any) -> Any:
    """Read the command line and the configuration files into *conf*.

    :raises ConfigFileParseError and others of oslo.config
    """
    conf(
        args=list(args),
        project=PROJECT,
        prog=kwargs.pop('prog', None),
        **kwargs,
    )
    return conf


def settings(conf: Any) -> Settings:
    """Return the values that filters, weighers and pipeline read."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Settings):
        group, name = _place(field.name)
        value = conf[name] if group is None else conf[group][name]
        values[field.name] = tuple(value) if isinstance(value, list) else value
    return Settings(**values)


def _place(field: str) -> tuple[str | None, str]:
    """Return (group, option) that fills a field of the settings."""
    for module in MODULES:
        group = module.GROUP or ''
        for option in module.OPTS:
            names = (
                option.dest,
                f'{group}_{option.dest}',
                f'{group}_{option.dest}es',
            )
            if field in names:
                return module.GROUP, option.dest
    raise LookupError(field)


def list_opts() -> list[tuple[str | None, list[Any]]]:
    """Return options by group, for the sample's generator."""
    found = [(module.GROUP, list(module.OPTS)) for module in MODULES]
    found.append((scheduler.UPGRADE_GROUP, list(scheduler.UPGRADE_OPTS)))
    return found


# What a wrong option or file is reported as.
FAULTS = (cfg.Error, ValueError)
