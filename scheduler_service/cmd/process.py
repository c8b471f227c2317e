"""The daemon's process: its start, its signals, reloads and end.

The main thread waits for signals; another thread starts the daemon, since the
start may wait long for the database. Reloading has a thread as well: the whole
configuration is checked first, and if any value is wrong, nothing changes.
"""

from __future__ import annotations

import datetime
import faulthandler
import gc
import logging
import os
import pathlib
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, NoReturn

from scheduler_service import conf as options
from scheduler_service import errors
from scheduler_service.cmd import log_levels
from scheduler_service.cmd.daemon import UNREACHABLE_S, Daemon, checked
from scheduler_service.cmd.program import release, write_file
from scheduler_service.conf import effective, option_names
from scheduler_service.worker import OnEnd, new_thread, start_thread

LOG = logging.getLogger(__name__)
_NAME = 'scheduler-service'
_SWITCH_INTERVAL_S = 0.0005
# Signals within this time count as one, in seconds: some programs signal a
# process, and then its process group.
_SAME_S = 0.5
# How long notifying systemd may take, in seconds.
_NOTIFY_S = 2.0
# How often the engine is checked for the watchdog, in seconds; at least four
# times within systemd's limit.
_CHECK_S = 2.0
# Faults of a configuration whose message needs no traceback.
_EXPECTED = (errors.SchedulerError, *options.FAULTS)


def run(read: Callable[[], Any]) -> NoReturn:
    """Serve until SIGTERM or SIGINT; end the process with status 0.

    :param read: reads the command line and the files into a new object
    :raises ConfigurationError: the configuration cannot be used
    """
    conf = read()
    # A request passes from thread to thread: a wait of Python's default of 5
    # ms for the interpreter would cost more than scheduling the request.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # Where the watchdog aborts the process, the journal gets its stacks.
    faulthandler.enable()
    daemon = checked(conf, starts=True)
    # Another process takes over its requests.
    daemon.scheduler.health.on_vital_end = lambda: _end_process(1)
    ended = daemon.scheduler.health.thread_ended
    handle(signal.SIGUSR2, 'report', write_report, daemon).start()
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
    reloading = handle(
        signal.SIGHUP, 'reload', lambda daemon: reload(daemon, read), daemon
    )
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
        feed_watchdog(
            daemon.scheduler.introspection.stalled_for, served, ended
        )
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


def _end_process(status: int = 0) -> NoReturn:
    """End the process without waiting for its threads.

    Threads may wait for a broker or a database that does not answer. Their
    requests are not acknowledged, so other daemons get them. The same applies
    after a clean stop: connections of the bus that are collected while the
    interpreter ends wait for locks of threads that have ended.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def tune_gc() -> None:
    """Exclude the snapshot from garbage collection, and collect rarely.

    The snapshot stays in memory, and requests leave no reference cycles.
    """
    gc.collect()
    gc.freeze()
    # More objects than belong to the decisions of the 0.2 s until they are
    # stored: else all of these are looked at again and again.
    gc.set_threshold(200_000, 10, 10)


def handle(
    number: signal.Signals,
    name: str,
    work: Callable[[Daemon], None],
    daemon: Daemon,
) -> threading.Thread:
    """Return a thread, not started yet, that does some work after a signal.

    A signal handler may interrupt the main thread anywhere, also while it
    holds the log's lock: so the handler only puts a request into a queue.
    """
    requests: queue.SimpleQueue[None] = queue.SimpleQueue()
    signal.signal(number, lambda *_: requests.put(None))

    def run() -> None:
        while True:
            requests.get()
            work(daemon)

    return new_thread(name, run, daemon.scheduler.health.thread_ended)


def notify(state: str) -> None:
    """Send a state to systemd, if it started us with ``Type=notify``."""
    address = os.environ.get('NOTIFY_SOCKET')
    if not address:
        return
    if address.startswith('@'):
        address = '\0' + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        # A slow receiver must not block the daemon.
        sock.settimeout(_NOTIFY_S)
        try:
            sock.connect(address)
            sock.sendall(state.encode())
        except OSError as fault:
            LOG.warning('Notifying systemd of %s failed: %s', state, fault)


def feed_watchdog(
    stalled_for: Callable[[], float],
    stopping: threading.Event,
    on_end: OnEnd,
) -> None:
    """Feed systemd's watchdog on a thread, if there is one.

    The thread pauses while the engine stands still: systemd then ends the
    process, and starts another.

    :param stalled_for: returns for how many seconds the engine stands still
    :param stopping: ends the thread
    """
    limit = int(os.environ.get('WATCHDOG_USEC') or 0) / 1e6
    if not limit or os.environ.get('WATCHDOG_PID') not in (
        None, str(os.getpid()),
    ):  # fmt: skip
        return

    def run() -> None:
        logged = False
        while True:
            still = stalled_for()
            if still < limit / 2:
                notify('WATCHDOG=1')
                logged = False
            elif not logged:
                LOG.error(
                    'The engine stands still for %.0f s; unless it moves, '
                    'systemd is going to end the process. SIGUSR2 shows '
                    'where it is',
                    still,
                )
                logged = True
            if stopping.wait(min(_CHECK_S, limit / 4)):
                return

    new_thread('watchdog', run, on_end).start()


def reload(daemon: Daemon, read: Callable[[], Any]) -> None:
    """Apply changed files; notify systemd of the beginning and the end.

    :param read: reads the command line and the files into a new object
    """
    now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notify(f'RELOADING=1\nMONOTONIC_USEC={now_us}')
    LOG.info('Reloading the configuration')
    health = daemon.scheduler.health
    count = health.count
    try:
        _reload(daemon, read())
    except BaseException as fault:
        count('reloads', 'refused')
        health.degrade(
            'reload',
            'the last reload was refused: the files cannot be used, and a '
            'restart would fail',
            'Reload accepted again',
            logging.ERROR,
        )
        daemon.refused(errors.text_of(fault))
        expected = isinstance(fault, _EXPECTED)
        LOG.error(
            'The new configuration cannot be used, and the running one '
            'stays in force: %s',
            fault if expected else f'{type(fault).__name__}: {fault}',
            exc_info=None if expected else fault,
        )
    else:
        health.recover('reload')
        count('reloads', 'taken')
    finally:
        notify('READY=1')


def _reload(daemon: Daemon, conf: Any) -> None:
    running = daemon.conf
    effective.register_like(conf, running)
    # As a restart would use the files; what needs one stays as it is below.
    checked(conf).dispose()
    option_names.warn(conf)
    waiting = effective.keep(conf, running)
    changed = effective.differences(running, conf)
    daemon.reconfigure(conf)
    log_levels.change(conf, running)
    LOG.info('Configuration reloaded; changed: %s', _places(changed))
    if waiting:
        LOG.warning('These options need a restart: %s', _places(waiting))


def _places(changed: Sequence[effective.Option]) -> str:
    return (
        ', '.join(
            str(effective.Difference(each.place, each.before, each.shown))
            for each in changed
        )
        or 'no option'
    )


def write_report(daemon: Daemon) -> None:
    """Write a Guru Meditation Report: the state of the process, as text.

    It goes to ``[oslo_reports] log_dir``, or standard error. A thread of its
    own makes it, in any state of the others; its libraries are imported then.
    """
    text = _text(daemon)
    folder = daemon.conf.oslo_reports.log_dir
    if folder:
        now = datetime.datetime.now(datetime.UTC)
        path = pathlib.Path(folder) / (
            f'{_NAME}_gurumeditation_{now:%Y%m%d%H%M%S%f}'
        )
        try:
            # Only for the owner: the report has requests and options.
            write_file(path, text.encode(), 0o600)
        except OSError as fault:
            LOG.error('The report cannot be written: %s', fault)
        else:
            LOG.info('A report of the process is in %s', path)
            return
    print(text, file=sys.stderr, flush=True)


def _text(daemon: Daemon) -> str:
    from oslo_reports.generators.conf import ConfigReportGenerator
    from oslo_reports.models.with_default_views import ModelWithDefaultViews
    from oslo_reports.report import TextReport

    def guarded(look: Callable[[], Any]) -> Callable[[], Any]:
        def generate() -> Any:
            try:
                state = look()
                if isinstance(state, dict):
                    return ModelWithDefaultViews(state)
                return state
            except Exception as fault:
                return f'not available: {type(fault).__name__}: {fault}\n'

        return generate

    introspection = daemon.scheduler.introspection
    health = daemon.scheduler.health
    report = TextReport('Guru Meditation Report')
    for title, look in {
        'Package': lambda: (
            f'{release(_NAME)}, Python {sys.version.split()[0]}\n'
        ),
        'Threads': _threads,
        'Daemon': lambda: {
            'name': daemon.name,
            'degraded': health.degraded,
            'counters': health.counters(),
        },
        'Snapshot': introspection.snapshot,
        'Queue': introspection.queue,
        'Claims under way': introspection.under_way,
        'Extenders': introspection.extenders,
        'Configuration': ConfigReportGenerator(daemon.conf),
    }.items():
        report.add_section(title, guarded(look))
    return str(report.run())


def _threads() -> str:
    from oslo_reports.models.threading import StackTraceModel

    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        model = StackTraceModel(frame)
        model.set_current_view_type('text')
        title = f'------ {names.get(ident, "unknown")} (thread {ident}) ------'
        parts.append(f'{title}\n{model}')
    return '\n'.join(sorted(parts))
