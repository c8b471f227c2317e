"""Reads the configuration anew while the daemon runs.

The whole configuration is checked first. If any value is wrong, nothing
changes: the log names the error, and the running configuration stays. A
thread of its own makes one reload at a time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from scheduler_service import conf as options
from scheduler_service import errors
from scheduler_service.cmd import log_levels
from scheduler_service.cmd.daemon import Daemon
from scheduler_service.cmd.signals import notify
from scheduler_service.conf import effective, option_names
from scheduler_service.rpc import transport

LOG = logging.getLogger(__name__)
# Faults whose message needs no traceback.
_EXPECTED = (errors.SchedulerError, *options.FAULTS)


def reload(daemon: Daemon, read: Callable[[], Any]) -> None:
    """Apply changed files; notify systemd of the beginning and the end.

    :param read: reads the command line and the files into a new object
    """
    now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notify(f'RELOADING=1\nMONOTONIC_USEC={now_us}')
    LOG.info('Reloading the configuration')
    count = daemon.scheduler.health.count
    try:
        _reload(daemon, read())
    except Exception as fault:
        count('reloads', 'refused')
        expected = isinstance(fault, _EXPECTED)
        LOG.error(
            'The new configuration cannot be used, and the running one '
            'stays in force: %s',
            fault if expected else f'{type(fault).__name__}: {fault}',
            exc_info=None if expected else fault,
        )
    else:
        count('reloads', 'taken')
    finally:
        notify('READY=1')


def _reload(daemon: Daemon, conf: Any) -> None:
    running = daemon.conf
    effective.register_like(conf, running)
    effective.check(conf)
    transport.address(conf)
    option_names.warn(conf)
    waiting = effective.keep(conf, running)
    changed = effective.differences(running, conf)
    log_levels.check(conf)
    apply = daemon.reconfigure(conf)
    apply()
    log_levels.change(conf, running)
    LOG.info('Configuration reloaded; changed: %s', _places(changed))
    if waiting:
        LOG.warning('These options need a restart: %s', _places(waiting))


def _places(changed: Sequence[effective.Option]) -> str:
    return (
        ', '.join(
            f'{option.place}: {option.before} -> {option.shown}'
            for option in changed
        )
        or 'no option'
    )
