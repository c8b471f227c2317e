"""Options: one module per group, registered on the object that is passed in.

No option is read at import. Plug-ins and the pipeline read no options: they
get the plain values that :func:`settings` returns. Called by the main thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from oslo_config import cfg
from oslo_db import options as db_options
from oslo_log import log
from oslo_policy import opts as policy_options

from scheduler_service import errors
from scheduler_service.conf import (
    database,
    default,
    filter_scheduler,
    history,
    http,
    metrics,
    option_names,
    oslo_reports,
    pci,
    pool_scheduler,
    scheduler,
    tracing,
)
from scheduler_service.model.requirements.devices import check_aliases
from scheduler_service.settings import EngineOptions, Settings

T = TypeVar('T', EngineOptions, Settings)
PROJECT = 'scheduler_service'
MODULES = (
    database,
    default,
    filter_scheduler,
    history,
    http,
    metrics,
    pci,
    pool_scheduler,
    oslo_reports,
    scheduler,
    tracing,
)
# All options but these take effect with a reload.
_NEED_RESTART = {
    http: {'bind_port', 'bind_host', 'pages'},
    scheduler: {
        'exchange',
        'query_placement_for_routed_network_aggregates',
        'server',
        'topic',
    },
    tracing: {'enabled', 'endpoint', 'sample_ratio'},
}
for _module in MODULES:
    for _option in _module.OPTS:
        _fixed = _NEED_RESTART.get(_module, ())
        _option.mutable = _option.name not in _fixed
# Field of the settings and options, among others -> group and option.
_PLACES = {
    field: (module.GROUP, option.dest)
    for module in reversed(MODULES)
    for option in module.OPTS
    for prefix in ('', f'{module.GROUP}_')
    for field in (f'{prefix}{option.dest}', f'{prefix}{option.dest}es')
}
_QUIET = [
    'amqp=WARN',
    'kombu=WARN',
    'sqlalchemy=WARN',
    'alembic=WARN',
    # The driver logs a lost broker for each connection and try; we do once.
    'oslo.messaging._drivers.impl_rabbit=CRITICAL',
    # The library logs each database error that it has no class for.
    'oslo_db.sqlalchemy.exc_filters=CRITICAL',
]


class _Options(cfg.ConfigOpts):  # type: ignore[misc]
    def _validate_cli_options(self, namespace: Any = None) -> None:
        """Leave it to ``effective.faults``; here a fault ends the process."""

    _check_required_opts = _validate_cli_options


def new_config(adapters: Sequence[Any] = ()) -> Any:
    """Return a configuration object with every option registered.

    :param adapters: modules of options of adapters
    """
    conf = _Options()
    for module in MODULES:
        conf.register_opts(module.OPTS, group=module.GROUP)
    conf.register_opts(scheduler.UPGRADE_OPTS, group=scheduler.UPGRADE_GROUP)
    for module in adapters:
        module.register_opts(conf)
    conf.register_opts(db_options.database_opts, group='database')
    policy_options.set_defaults(conf)
    log.register_options(conf)
    log.set_defaults(default_log_levels=log.get_default_log_levels() + _QUIET)
    return conf


def parse(conf: Any, args: Sequence[str], **kwargs: Any) -> Any:
    """Read the command line and the configuration files into *conf*.

    :raises: one of :data:`FAULTS`
    """
    try:
        conf(
            args=list(args),
            project=PROJECT,
            prog=kwargs.pop('prog', None),
            **kwargs,
        )
    except UnicodeDecodeError as fault:
        path = option_names.not_text(args, PROJECT)
        raise ValueError(f'{path}: not a text in UTF-8: {fault}') from None
    return conf


@contextlib.contextmanager
def place(conf: Any, group: str, name: str) -> Iterator[None]:
    """Prefix errors of the code inside with the option concerned."""
    try:
        yield
    except errors.ConfigurationError as fault:
        at = conf.get_location(name, group)
        where = f' ({at.detail})' if at is not None and at.detail else ''
        raise type(fault)(
            f'[{group}] {name}{where}: {fault.args[0]}', **fault.facts
        ) from None


def values(conf: Any, kind: type[T]) -> T:
    """Return an object of a dataclass with the options of its fields' names.

    :raises: one of :data:`FAULTS`, for a value out of bounds
    """
    made: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        group, name = _PLACES[field.name]
        value = conf[name] if group is None else conf[group][name]
        made[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**made)


def settings(conf: Any) -> Settings:
    """Return the values that filters, weighers and the pipeline read.

    :raises ConfigurationError: an alias of devices is not valid
    :raises: one of :data:`FAULTS`, for a value out of bounds
    """
    made = values(conf, Settings)
    with place(conf, pci.GROUP, 'alias'):
        try:
            check_aliases(made.pci_aliases)
        except ValueError as fault:
            raise errors.ConfigurationError(str(fault)) from None
    return made


def list_opts(
    adapters: Sequence[Any] = (),
) -> list[tuple[str | None, list[Any]]]:
    """Return options by group.

    :param adapters: modules of options of adapters
    """
    groups = [
        (module.GROUP, list(module.OPTS)) for module in (*MODULES, *adapters)
    ]
    groups.append((scheduler.UPGRADE_GROUP, list(scheduler.UPGRADE_OPTS)))
    return groups


# Exceptions of oslo.config for an invalid option or file.
FAULTS = (cfg.Error, ValueError)
