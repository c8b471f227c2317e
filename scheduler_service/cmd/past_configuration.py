"""The configuration that a daemon had when it decided."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Connection

from scheduler_service import conf as options
from scheduler_service import errors
from scheduler_service.cmd import adapters
from scheduler_service.conf import effective
from scheduler_service.engine_config import EngineConfig
from scheduler_service.store.records import daemons


def loaded(document: effective.Document) -> Any:
    """Return the options of a kept document; secrets are not set.

    :raises: one of ``conf.FAULTS``, for a value that is not valid
    """
    conf = adapters.new_config()
    options.parse(conf, [], default_config_files=[], default_config_dirs=[])
    effective.load(document, conf)
    return conf


def as_of(
    conn: Connection, fingerprint: str, present: Any
) -> tuple[EngineConfig, str]:
    """Return what a kept configuration makes of the engine.

    :param fingerprint: of that configuration
    :param present: options of the files
    :return: the engine's configuration, and why it is that of the present;
        empty: it is that of then
    :raises ConfigurationError: that of the present does not load
    """
    reason = ''
    if fingerprint != effective.fingerprint(present):
        document = daemons.configuration(conn, fingerprint)
        try:
            if document is None:
                reason = 'is not kept any more'
            else:
                conf = loaded(document)
                changes = effective.outdated(document, conf)
                if not changes:
                    return adapters.engine(conf), ''
                reason = f'had other files: {"; ".join(map(str, changes))}'
        except (errors.SchedulerError, *options.FAULTS) as fault:
            reason = f'does not load: {fault}'
        reason = f'The configuration {fingerprint} {reason}'
    return adapters.engine(present), reason
