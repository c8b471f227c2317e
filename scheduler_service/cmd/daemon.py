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
import socket
import sys
import threading
import time
from concurrent import futures
from typing import Any

from oslo_log import log

from scheduler_service import errors, policies
from scheduler_service.engine.factory import build, pod_evaluator
from scheduler_service.engine.scheduler import Scheduler
from scheduler_service.rpc import transport
from scheduler_service.rpc.arguments import ArgumentParser
from scheduler_service.rpc.cast_replies import CastReplySender, new_notifier
from scheduler_service.rpc.endpoints import VERSION, SchedulerEndpoint
from scheduler_service.rpc.host_state import HostStateEndpoint
from scheduler_service.rpc.redelivery import RedeliveryWorker
from scheduler_service.rpc.reply_publisher import ReplyPublisher
from scheduler_service.rpc.server import LateAckServer, new_server
from scheduler_service.store.connection import Store

LOG = logging.getLogger(__name__)
_SWITCH_INTERVAL_S = 0.0005


class Daemon:
    """One scheduler on one topic and one store.

    :param conf: parsed options
    :param transport_url: used instead of ``[DEFAULT] transport_url``
    :raises ConfigurationError: an option cannot be used
    """

    def __init__(self, conf: Any, transport_url: str | None = None) -> None:
        self.conf = conf
        self.store = open_store(conf)
        self.name = conf.scheduler.server or (
            f'{platform.node()}-{os.getpid()}'
        )
        self.scheduler: Scheduler = build(conf, self.store)
        self._url = transport_url
        self._publisher = ReplyPublisher(self.scheduler.health)
        self._redelivery = RedeliveryWorker(
            self.scheduler.quarantine, self._publisher
        )
        self._server: LateAckServer | None = None
        self._transports: list[Any] = []
        self._http = self._new_http()

    def start(self) -> None:
        """Load the snapshot, then serve; wait for database and broker.

        Nothing is served if :meth:`stop` is called during the wait.
        """
        self._publisher.start()
        if not self.scheduler.start():
            return
        self._serve_http()
        bus = transport.for_server(self.conf, self._url)
        notifications = transport.for_notifications(self.conf, self._url)
        self._transports = [bus, notifications]
        self.scheduler.health.add_check(self._publisher.check_health)
        self.scheduler.health.add_check(lambda: self._check_broker(bus))
        notifier = new_notifier(
            self.conf, notifications, f'scheduler.{self.name}'
        )
        parser = ArgumentParser(self.conf.scheduler.request_max_bytes)
        scheduling = SchedulerEndpoint(
            self.scheduler,
            policies.new_enforcer(self.conf),
            CastReplySender(bus, notifier),
            parser,
            self.name,
        )
        host_state = HostStateEndpoint(
            self.scheduler.host_state_writer, parser
        )
        self._server = new_server(
            bus,
            (self.conf.scheduler.topic, self.name),
            [scheduling, host_state],
            VERSION,
            self._publisher,
            self._redelivery,
        )
        self._redelivery.start()
        self._server.start()

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
        from scheduler_service.http import app, binder, server

        guard = app.guard_of(group)
        ours = self.conf.extender
        bind = None
        if ours.api_server:
            bind = binder.Binder(
                ours.api_server, ours.api_token_file, ours.api_ca_file
            )
        made = server.Server(
            (group.bind_host, group.bind_port),
            app.make(
                self.scheduler,
                pod_evaluator(self.conf, self.scheduler),
                bind,
                guard,
                group.max_body_bytes,
            ),
            group.threads,
            group.request_timeout,
            group.idle_timeout,
            group.max_body_bytes,
        )
        if group.cert_file:
            try:
                made.ssl_adapter = server.tls(
                    group.cert_file, group.key_file, group.ca_file
                )
            except (OSError, ValueError) as fault:
                raise errors.ConfigurationError(
                    f'[http] the certificate does not load: {fault}'
                ) from None
        return made

    def _check_broker(self, bus: Any) -> None:
        """Report to health whether requests and heartbeats can arrive."""
        is_connected = getattr(bus._driver, 'is_connected', None)
        if is_connected is None or is_connected():
            self.scheduler.health.recover('broker')
        else:
            self.scheduler.health.degrade(
                'broker', 'broker unreachable', 'Broker reachable again'
            )
            self.scheduler.host_state_writer.reset_liveness()

    def stop(self) -> bool:
        """Stop consuming, finish the requests that were consumed.

        :return: whether all of them were finished and answered in time
        """
        limit = self.conf.scheduler.graceful_shutdown_timeout
        deadline = time.monotonic() + limit
        self.scheduler.cancel_start()
        if self._server is not None:
            self._server.stop()
            self._redelivery.stop()
            if self._http is not None:
                self._http.end()
        done = self.scheduler.stop(limit)
        done &= self._publisher.stop(max(0.1, deadline - time.monotonic()))
        if self._server is not None:
            self._server.wait()
        for used in self._transports:
            used.cleanup()
        self.store.dispose()
        return done


def open_store(conf: Any) -> Store:
    """Return the store of ``[database] connection``; it connects later.

    :raises ConfigurationError: the option is not set, or not a usable URL
    """
    url = conf.database.connection
    if not url:
        raise errors.ConfigurationError(
            '[database] connection is not set; for example '
            'postgresql+psycopg://scheduler@localhost/scheduler'
        )
    return Store.connect(
        url,
        connection_recycle_time=conf.database.connection_recycle_time,
        max_pool_size=conf.database.max_pool_size,
        max_overflow=conf.database.max_overflow,
        pool_timeout=conf.database.pool_timeout,
    )


def run(conf: Any) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status."""
    # A request passes from thread to thread: to wait Python's default of 5 ms
    # for the interpreter would cost more than scheduling it.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    stopping = threading.Event()
    daemon = Daemon(conf)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _stop(daemon, stopping))
    signal.signal(signal.SIGHUP, lambda *_: _reload(conf))
    LOG.info('Starting %s on topic %s', daemon.name, conf.scheduler.topic)
    with futures.ThreadPoolExecutor(1, 'start') as pool:
        starting = pool.submit(daemon.start)
        while not starting.done():
            stopping.wait(0.01)
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
    done = daemon.stop()
    LOG.info(
        'Stopped%s',
        '' if done else '; some requests were not finished in time',
    )
    return 0


def tune_gc() -> None:
    """Keep the garbage collector from walking the snapshot all the time.

    The snapshot stays anyway, and requests leave no reference cycles behind.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def _stop(daemon: Daemon, stopping: threading.Event) -> None:
    stopping.set()
    daemon.scheduler.cancel_start()


def _reload(conf: Any) -> None:
    """Reload the options that can change while the daemon runs."""
    LOG.info('Reloading the configuration')
    conf.mutate_config_files()


def notify(state: str) -> None:
    """Send a state to systemd, if it started us with ``Type=notify``."""
    address = os.environ.get('NOTIFY_SOCKET')
    if not address:
        return
    if address.startswith('@'):
        address = '\0' + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(address)
            sock.sendall(state.encode())
        except OSError as fault:
            LOG.warning('Notifying systemd of %s failed: %s', state, fault)


def set_up_logging(conf: Any) -> None:
    """Set up logging by the options."""
    log.setup(conf, 'scheduler_service')
