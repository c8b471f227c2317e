"""The daemon's process: its start, its signals and its end.

The main thread waits for signals; another thread starts the daemon, since the
start may wait long for the database. Reloading has a thread as well.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any, NoReturn

from scheduler_service.cmd.daemon import UNREACHABLE_S, Daemon
from scheduler_service.cmd.program import start_thread
from scheduler_service.cmd.reloading import reload
from scheduler_service.cmd.signals import feed_watchdog, handle, notify
from scheduler_service.cmd.state_report import write_report

LOG = logging.getLogger(__name__)
_SWITCH_INTERVAL_S = 0.0005
# Signals within this time count as one, in seconds: some programs signal a
# process, and then its process group.
_SAME_S = 0.5


def run(conf: Any, read: Callable[[], Any]) -> NoReturn:
    """Serve until SIGTERM or SIGINT; end the process with status 0.

    :param conf: parsed options
    :param read: reads them anew, for a reload
    """
    # A request passes from thread to thread: a wait of Python's default of 5
    # ms for the interpreter would cost more than scheduling the request.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # Where the watchdog aborts the process, the journal gets its stacks.
    faulthandler.enable()
    daemon = Daemon(conf)
    handle(signal.SIGUSR2, lambda: write_report(daemon), 'report').start()
    # When signals to stop came; unlike an event, a queue may be used by a
    # handler, which interrupts the main thread that waits for it.
    stops: list[float] = []
    wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()

    def stop(*_: Any) -> None:
        now = time.monotonic()
        if stops and now - stops[0] > _SAME_S:
            # Without a log line: the log's lock may be taken.
            os._exit(0)
        stops.append(now)
        wakeups.put(None)
        daemon.scheduler.cancel_start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    # A reload that is requested during the start follows it.
    reloading = handle(signal.SIGHUP, lambda: reload(daemon, read), 'reload')
    LOG.info('Starting %s on topic %s', daemon.name, conf.scheduler.topic)
    limit = conf.scheduler.graceful_shutdown_timeout
    starting = start_thread(daemon.start, 'start')
    starting.add_done_callback(lambda _: wakeups.put(None))
    wakeups.get()
    if stops:
        # No request is consumed before the start is done.
        futures.wait([starting], min(limit, UNREACHABLE_S))
        if not starting.done():
            LOG.info('Stopped before the start was done')
            _end_process()
    starting.result()
    tune_gc()
    if not stops:
        status = daemon.scheduler.status()
        LOG.info(
            'Ready: %(hosts)d hosts, %(pools)d pools, revision %(revision)d'
            '%(awaited)s',
            {**status, 'awaited': daemon.awaited()},
        )
        served = threading.Event()
        feed_watchdog(daemon.scheduler.introspection.stalled_for, served)
        notify('READY=1')
        reloading.start()
        while not stops:
            wakeups.get()
        served.set()
    notify('STOPPING=1')
    ending = start_thread(daemon.stop, 'stop')
    limit = daemon.conf.scheduler.graceful_shutdown_timeout
    futures.wait([ending], limit)
    if ending.done() and ending.result():
        LOG.info('Stopped')
    else:
        LOG.info('Stopped; some requests were not finished in time')
    _end_process()


def _end_process() -> NoReturn:
    """End the process without waiting for its threads.

    Threads may wait for a broker or a database that does not answer. Their
    requests are not acknowledged, so other daemons get them. The same applies
    after a clean stop: connections of the bus that are collected while the
    interpreter ends wait for locks of threads that have ended.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def tune_gc() -> None:
    """Exclude the snapshot from garbage collection, and collect rarely.

    The snapshot stays in memory, and requests leave no reference cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
