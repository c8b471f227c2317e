"""The daemon: what is built at the start, and the life of its process.

The main thread waits for signals; a thread of its own starts the daemon,
since that may wait long for the database.
"""

from __future__ import annotations

import gc
import logging
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, NoReturn

from oslo_log import log

from scheduler_service import errors, policies
from scheduler_service.cmd import compute, threads
from scheduler_service.cmd.mirroring import Mirroring
from scheduler_service.cmd.signals import StopSignal, notify
from scheduler_service.compute.changes import Changes
from scheduler_service.engine.factory import build
from scheduler_service.engine.scheduler import Scheduler
from scheduler_service.model import documents
from scheduler_service.rpc import transport
from scheduler_service.rpc.arguments import ArgumentParser
from scheduler_service.rpc.call_monitor import CallMonitor
from scheduler_service.rpc.cast_replies import CastReplySender, new_notifier
from scheduler_service.rpc.endpoints import VERSION, SchedulerEndpoint
from scheduler_service.rpc.host_state import HostStateEndpoint
from scheduler_service.rpc.redelivery import RedeliveryWorker
from scheduler_service.rpc.reply_publisher import ReplyPublisher
from scheduler_service.rpc.server import (
    Dispatcher,
    LateAckServer,
    new_server,
)
from scheduler_service.store.connection import Store
from scheduler_service.store.timeouts import Timeouts

LOG = logging.getLogger(__name__)
_SWITCH_INTERVAL_S = 0.0005
# How long a stopping daemon waits for an unreachable broker, in seconds.
_UNREACHABLE_S = 2.0
# How long the connections to the broker may take to close, in seconds.
_CLOSE_S = 5.0


class Daemon:
    """One scheduler on one topic and one store.

    :param conf: parsed options
    :param transport_url: used instead of ``[DEFAULT] transport_url``
    :ivar changes: where a mirror of the compute service hears of changes
    :raises ConfigurationError: an option cannot be used
    """

    def __init__(self, conf: Any, transport_url: str | None = None) -> None:
        compute.check(conf)
        documents.prepare()
        self.conf = conf
        self.store = open_store(conf)
        self.name = conf.scheduler.server or (
            f'{platform.node()}-{os.getpid()}'
        )
        self.scheduler: Scheduler = build(conf, self.store)
        self._url = transport_url
        self._enforcer = policies.Enforcer(conf)
        self._publisher = ReplyPublisher(self.scheduler.health)
        self._redelivery = RedeliveryWorker(
            self.scheduler.quarantine, self._publisher
        )
        self._monitor = CallMonitor(self.scheduler.health)
        self.changes = Changes(self.scheduler.health)
        self._servers: list[LateAckServer] = []
        self._transports: list[Any] = []
        self.mirroring = Mirroring(conf, self.store, self.scheduler)
        self._http = self._new_http()
        self.changes.subscribe(lambda _: self.mirroring.changed())

    def start(self) -> None:
        """Load the snapshot, then serve; wait for database and broker.

        Nothing is served if :meth:`stop` is called during the wait.
        """
        # First, since a liveness probe does not wait for the database.
        self._serve_http()
        self._publisher.start()
        if not self.scheduler.start(self.mirroring.is_filled):
            return
        bus = transport.for_server(self.conf, self._url)
        notifications = transport.for_notifications(self.conf, self._url)
        self._transports = [bus, notifications]
        others = compute.transport_of(self.conf, bus)
        if others is not bus:
            self._transports.append(others)
        self.scheduler.health.add_check(self._publisher.check_health)
        self.scheduler.health.add_check(self._check_broker)
        self._pause_with_the_database()
        notifier = new_notifier(
            self.conf, notifications, f'scheduler.{self.name}'
        )
        parser = ArgumentParser(self.conf.scheduler.request_max_bytes)
        scheduling = SchedulerEndpoint(
            self.scheduler,
            self._enforcer,
            CastReplySender(bus, notifier),
            parser,
            self.name,
        )
        host_state = HostStateEndpoint(
            self.scheduler.host_state_writer, self._enforcer, parser
        )
        group = self.conf.scheduler
        target = transport.target(group.exchange, group.topic, self.name)
        own = Dispatcher([scheduling, host_state], VERSION)
        self._serve(bus, target, own)
        if self.conf.compute.enabled:
            endpoint = compute.endpoint(
                self.conf, self.scheduler, self.changes
            )
            target = compute.target(self.conf, self.name)
            self._serve(others, target, endpoint.dispatcher())
        self._monitor.start()
        self._redelivery.start()
        self.mirroring.start()
        for server in self._servers:
            server.start()

    def _serve(self, bus: Any, target: Any, dispatcher: Dispatcher) -> None:
        """Add a server, which is not started yet."""
        server = new_server(
            bus,
            target,
            dispatcher,
            self._publisher,
            self._redelivery,
            self._monitor,
        )
        self._servers.append(server)

    def _pause_with_the_database(self) -> None:
        """Have the buses consume nothing while the database is lost."""
        drivers = [used._driver for used in self._transports]
        pausing = [one for one in drivers if hasattr(one, 'pause')]
        monitor = self.scheduler.store_monitor
        monitor.pause = lambda: _each(pausing, 'pause')
        monitor.resume = lambda: _each(pausing, 'resume')

    def _serve_http(self) -> None:
        """Serve HTTP, if ``[http] bind_port`` is set.

        :raises ConfigurationError: the address cannot be used
        """
        if self._http is None:
            return
        try:
            self._http.run()
        except OSError as fault:
            raise errors.ConfigurationError(
                f'[http] bind_host, bind_port: {fault}'
            ) from None
        LOG.info('Listening on %s:%s', *self._http.bind_addr)

    def _new_http(self) -> Any:
        """Return the HTTP server; None if ``[http] bind_port`` is not set.

        :raises ConfigurationError: an option of [http] cannot be used
        """
        group = self.conf.http
        if group.bind_port is None:
            return None
        from scheduler_service.http import access, app, binder, metrics, server
        from scheduler_service.http import tls as http_tls

        ours = self.conf.extender
        bind = None
        if ours.api_server:
            bind = binder.Binder(
                ours.api_server,
                ours.api_token_file,
                ours.api_ca_file,
                ours.api_timeout,
            )
        more, public = compute.routes(self.conf, self.scheduler)
        guard = access.guard_of(group, public)
        tls = None
        if group.cert_file:
            try:
                tls = http_tls.settings(
                    group.cert_file, group.key_file, group.ca_file
                )
            except (OSError, ValueError) as fault:
                raise errors.ConfigurationError(
                    f'[http] the certificate does not load: {fault}'
                ) from None
        router = app.make(
            self.scheduler,
            self.mirroring.cluster.evaluator(),
            bind,
            guard,
            self._enforcer,
            group,
            lambda: metrics.connections(made.connections, made.closed),
            more,
        )
        made = server.Server(group, router, tls)
        return made

    def _check_broker(self) -> None:
        """Report to health whether requests and heartbeats can arrive."""
        if self._is_connected():
            self.scheduler.health.recover('broker')
        else:
            self.scheduler.health.degrade(
                'broker', 'broker unreachable', 'Broker reachable again'
            )
            self.scheduler.host_state_writer.reset_liveness()

    def stop(self) -> bool:
        """Stop consuming, finish the requests that were consumed.

        While the broker is unreachable nothing can be answered, and it gives
        what was consumed to other daemons: that is not waited for.

        :return: whether all of them were finished and answered in time
        """
        limit = self.conf.scheduler.graceful_shutdown_timeout
        if not self._is_connected():
            limit = min(limit, _UNREACHABLE_S)
        deadline = time.monotonic() + limit
        self.scheduler.cancel_start()
        done = True
        for server in self._servers:
            done &= _within(_left(deadline), server.stop, 'stop-consuming')
        if self._servers:
            self._redelivery.stop()
            self._monitor.stop()
        if self._http is not None:
            self._http.end()
        self.mirroring.stop(_left(deadline))
        done &= self.scheduler.stop(_left(deadline))
        done &= self._publisher.stop(_left(deadline))
        # Also where replies are left: their queues take none. A connection
        # that is made again at this moment would take long to close.
        closing = min(_CLOSE_S, _left(deadline))
        done &= _within(closing, self._close_bus, 'close-bus')
        self.store.dispose()
        return done

    def _is_connected(self) -> bool:
        """Whether the broker can be reached, as far as is known."""
        return all(
            getattr(used._driver, 'is_connected', lambda: True)()
            for used in self._transports
        )

    def _close_bus(self) -> None:
        for server in self._servers:
            server.wait()
        for used in self._transports:
            used.cleanup()


def _each(drivers: Sequence[Any], method: str) -> None:
    for driver in drivers:
        getattr(driver, method)()


def _left(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())


def _within(seconds: float, work: Callable[[], None], name: str) -> bool:
    """Run work on a thread; return whether it ended in time."""
    try:
        threads.run_within(seconds, work, name)
    except futures.TimeoutError:
        return False
    return True


def open_store(conf: Any, statement_timeout: float | None = None) -> Store:
    """Return the store of ``[database] connection``; it connects later.

    :param statement_timeout: in seconds, in place of the option
    :raises ConfigurationError: the option is not set, or not a usable URL
    """
    url = conf.database.connection
    if not url:
        raise errors.ConfigurationError(
            '[database] connection is not set; for example '
            'postgresql+psycopg://scheduler@localhost/scheduler'
        )
    group = conf.database
    timeouts = Timeouts(
        connect=group.connect_timeout,
        lock=group.lock_timeout,
        statement=(
            group.statement_timeout
            if statement_timeout is None
            else statement_timeout
        ),
        idle_transaction=group.idle_transaction_timeout,
        response=group.response_timeout,
    )
    return Store.connect(
        url,
        timeouts,
        connection_recycle_time=conf.database.connection_recycle_time,
        max_pool_size=conf.database.max_pool_size,
        max_overflow=conf.database.max_overflow,
        pool_timeout=conf.database.pool_timeout,
    )


def run(conf: Any) -> NoReturn:
    """Serve until SIGTERM or SIGINT; end the process with status 0."""
    # A request passes from thread to thread: to wait Python's default of 5 ms
    # for the interpreter would cost more than scheduling it.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    stopping = StopSignal()
    daemon = Daemon(conf)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _stop(daemon, stopping))
    signal.signal(signal.SIGHUP, lambda *_: _reload(conf))
    LOG.info('Starting %s on topic %s', daemon.name, conf.scheduler.topic)
    limit = conf.scheduler.graceful_shutdown_timeout
    starting = threads.start(daemon.start, 'start')
    while not starting.done() and not stopping.is_set():
        stopping.wait(0.01)
    if stopping.is_set():
        # Nothing is consumed before the start is done.
        futures.wait([starting], min(limit, _UNREACHABLE_S))
        if not starting.done():
            LOG.info('Stopped before the start was done')
            _end_process()
    starting.result()
    tune_gc()
    if not stopping.is_set():
        status = daemon.scheduler.status()
        LOG.info(
            'Ready: %(hosts)d hosts, %(pools)d pools, revision %(revision)d',
            status,
        )
        notify('READY=1')
        stopping.wait()
    notify('STOPPING=1')
    ending = threads.start(daemon.stop, 'stop')
    futures.wait([ending], limit)
    if not ending.done() or not ending.result():
        LOG.info('Stopped; some requests were not finished in time')
        _end_process()
    LOG.info('Stopped')
    _end_process()


def _end_process() -> NoReturn:
    """End the process without waiting for its threads.

    They may wait for a broker or a database that does not answer. What they
    have is not acknowledged, so that other daemons get it. After a clean stop
    as well: the bus's connections that are collected while the interpreter
    ends wait for locks of threads that have ended.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def tune_gc() -> None:
    """Keep the garbage collector from walking the snapshot all the time.

    The snapshot stays anyway, and requests leave no reference cycles behind.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def _stop(daemon: Daemon, stopping: StopSignal) -> None:
    """Stop in an orderly way; at once when asked a second time."""
    if stopping.is_set():
        # Without a word: the log's lock may be taken.
        os._exit(0)
    stopping.set()
    daemon.scheduler.cancel_start()


def _reload(conf: Any) -> None:
    """Reload the options that can change while the daemon runs."""
    LOG.info('Reloading the configuration')
    conf.mutate_config_files()


def set_up_logging(conf: Any) -> None:
    """Set up logging by the options."""
    log.setup(conf, 'scheduler_service')
