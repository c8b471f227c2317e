"""The daemon: builds its parts at the start, and reconfigures them.

``cmd.process`` handles signals and ends the process.

A :class:`DaemonRegister` keeps the daemon's entry among those that share the
store. It owns the thread that writes it: who the daemon is, how it is
configured, and every few seconds a sign of life, also over the bus. The
thread warns where others that live are configured differently, or have
another store: then the same request may be decided differently, by whichever
takes it. Every ten minutes the thread of one of them records how full zones
are.
"""

from __future__ import annotations

import logging
import os
import platform
import time
import uuid
from collections.abc import Callable
from concurrent import futures
from typing import Any

from sqlalchemy.engine import Connection

from scheduler_service import errors, policies, tracing
from scheduler_service.cmd import adapters, log_levels
from scheduler_service.cmd.connections import new_store, registration
from scheduler_service.cmd.program import run_within
from scheduler_service.cmd.serving import HttpServing
from scheduler_service.conf import effective, option_names
from scheduler_service.engine.health import Health
from scheduler_service.factory import build
from scheduler_service.introspection import Introspection
from scheduler_service.model import documents
from scheduler_service.moments import Occurrence
from scheduler_service.rpc import transport
from scheduler_service.rpc.delivery import new_notifier
from scheduler_service.rpc.endpoints import (
    VERSION,
    HostStateEndpoint,
    SchedulerEndpoint,
)
from scheduler_service.rpc.peers import Peer, Peers
from scheduler_service.rpc.server import Dispatcher, Server
from scheduler_service.scheduler import Scheduler
from scheduler_service.store import version
from scheduler_service.store.connection import Store, Writer
from scheduler_service.store.records import daemons, rates
from scheduler_service.store.records.daemons import Registration
from scheduler_service.store.records.leases import Lease, new_holder
from scheduler_service.worker import Worker

LOG = logging.getLogger(__name__)
# How long a stopping daemon waits for an unreachable broker, in seconds.
UNREACHABLE_S = 2.0
# For large replies, and for notifications.
_THREADS = 2
# How long the connections to the broker may take to close, in seconds.
_CLOSE_S = 5.0
# How long the last spans may take to reach their collector, in seconds.
_SEND_S = 2.0
_INTERVAL_S = 5.0
# Daemons that ended without a word are forgotten after a day.
_KEPT_S = 86_400.0
_LEASE = 'zone-usage'


class Daemon:
    """A scheduler on one topic and one store.

    :param conf: parsed options
    :param transport_url: used instead of ``[DEFAULT] transport_url``
    :ivar adapters: enabled adapters
    :ivar http: its HTTP servers
    :raises ConfigurationError: an option cannot be used
    """

    def __init__(self, conf: Any, transport_url: str | None = None) -> None:
        self.conf = conf
        self.store = new_store(conf)
        self.name = conf.scheduler.server or (
            f'{platform.node()}-{os.getpid()}'
        )
        self.scheduler: Scheduler = build(
            conf, self.store, policy=adapters.policy(conf)
        )
        self._tracer = tracing.tracer_of(conf.tracing, self.name)
        # A shadow declares nothing on the compute service's bus, and so it
        # has its own interface in its process alone.
        self._url = (
            transport.NO_BROKER if conf.compute.shadow else transport_url
        )
        self._enforcer = policies.Enforcer(conf)
        # These start their threads when they are needed.
        self._redelivery = futures.ThreadPoolExecutor(1, 'redelivery')
        self._executor = futures.ThreadPoolExecutor(_THREADS, 'reply')
        self._servers: list[Server] = []
        self._notifier: Any = None
        self._peers = Peers(self.scheduler.health)
        self._register: DaemonRegister | None = None
        self.adapters = adapters.enabled(conf, self.store, self.scheduler)
        self.http = HttpServing(
            conf, self.scheduler, self.adapters, self._enforcer, self._tracer
        )
        # All modules with documents are imported by now.
        documents.prepare()

    def start(self) -> None:
        """Load the snapshot, then serve; wait for database and broker.

        Nothing is served if :meth:`stop` is called during the wait.
        """
        # HTTP first: a liveness probe does not wait for the database.
        self.http.run()
        self.scheduler.recorder.origin = {'daemon': self.name}
        if not self.scheduler.start(
            lambda: all(adapter.is_filled() for adapter in self.adapters)
        ):
            return
        self._notifier = new_notifier(
            self.conf, self._url, f'scheduler.{self.name}'
        )
        scheduling = SchedulerEndpoint(
            self.scheduler, self._enforcer, self.name, self._peers,
            self._notifier,
        )  # fmt: skip
        host_state = HostStateEndpoint(
            self.scheduler.host_state_writer, self._enforcer
        )
        group = self.conf.scheduler
        target = transport.Target(
            group.exchange, group.topic, server=self.name
        )
        own = Dispatcher([scheduling, host_state], VERSION)
        self._serve(None, target, own)
        for adapter in self.adapters:
            for served in adapter.endpoints(self.conf, self.name):
                self._serve(*served)
        self.scheduler.health.add_check(self._check_replies)
        self.scheduler.health.add_check(self._check_broker)
        monitor = self.scheduler.store_monitor
        monitor.pause = lambda: self._each_bus('pause')
        monitor.resume = lambda: self._each_bus('resume')
        for adapter in self.adapters:
            adapter.start()
        # The entry includes options that libraries registered above.
        entry = registration(self.conf, self.name, uuid.uuid4().hex)
        self._sign_decisions(entry)
        for server in self._servers:
            server.bus.start()
        self._register = DaemonRegister(
            self.store,
            entry,
            self._peers,
            lambda: self._peers.cast(
                self._servers[0].bus, group.exchange, group.topic
            ),
            self.scheduler.introspection,
            self.scheduler.health,
        )
        self._register.start()

    def awaited(self) -> str:
        """Return what adapters have not loaded yet, to end a sentence."""
        return ''.join(
            f'; {name} are still being loaded'
            for adapter in self.adapters
            for name, is_loaded in adapter.readiness().items()
            if not is_loaded()
        )

    def _serve(
        self, url: str | None, target: Any, dispatcher: Dispatcher
    ) -> None:
        """Add a server, which is not started yet.

        :param url: of its bus; None: the daemon's
        """
        server = Server(
            dispatcher,
            self.scheduler.quarantine,
            self._redelivery,
            self.scheduler.outcomes,
            self._executor,
            self.scheduler.health,
            self._tracer,
        )
        server.bus = transport.new_consumer(
            self.conf,
            url or self._url,
            target,
            server.take,
            self.scheduler.health,
        )
        self._servers.append(server)

    def _each_bus(self, method: str) -> None:
        for server in self._servers:
            getattr(server.bus, method)()

    def reconfigure(self, conf: Any) -> None:
        """Check a configuration as a whole, and apply it.

        It waits for the end of the batch under way. No request is lost, and
        each is decided by a single configuration.

        :param conf: parsed options; those that need a restart have their
            running values
        :raises ConfigurationError: the configuration cannot be used, and
            nothing is changed
        """
        config = adapters.engine(conf)
        changes = [adapter.check(conf) for adapter in self.adapters]
        policy = policies.Enforcer(conf)
        serve = self.http.check(conf)
        decide = self.scheduler.check(config)
        decide()
        self._enforcer.adopt(policy)
        for apply in (serve, *changes):
            apply()
        self.conf = conf
        if self._register is not None:
            entry = self._register.entry
            changed = registration(conf, entry.name, entry.id)
            self._sign_decisions(changed)
            self._register.change(changed)

    def refused(self, reason: str) -> None:
        """Record that a configuration cannot be used."""
        if self._register is not None:
            self._register.refuse(reason)

    def _sign_decisions(self, entry: Registration) -> None:
        self.scheduler.recorder.origin = {
            'daemon': entry.name,
            'configuration': entry.fingerprint,
        }

    def _check_broker(self) -> None:
        if self._is_connected():
            self.scheduler.health.recover('broker')
        else:
            faults = (server.bus.fault() for server in self._servers)
            reason = next(filter(None, faults), '')
            self.scheduler.health.degrade(
                'broker',
                f'broker unreachable{f" ({reason})" if reason else ""}',
                'Broker reachable again',
            )
            self.scheduler.host_state_writer.reset_liveness()

    def _check_replies(self) -> None:
        waiting = sum(server.bus.stuck() for server in self._servers)
        if waiting:
            text = f'the broker accepts no replies, {waiting} are waiting'
            self.scheduler.health.degrade(
                'replies', text, 'Replies are sent again'
            )
        elif self._is_connected():
            self.scheduler.health.recover('replies')

    def stop(self) -> bool:
        """Stop consuming, and finish the consumed requests.

        An unreachable broker gives consumed requests to other daemons, and
        takes no replies: the wait is short then.

        :return: whether all requests were finished and answered in time
        """
        limit = self.conf.scheduler.graceful_shutdown_timeout
        if not self._is_connected():
            limit = min(limit, UNREACHABLE_S)
        deadline = time.monotonic() + limit
        self.scheduler.cancel_start()
        done = True
        for server in self._servers:
            stop = server.bus.stop_consuming
            done &= _within(_remaining(deadline), stop, 'stop-consuming')
        # The broker gives waiting messages to other daemons.
        self._redelivery.shutdown(wait=False, cancel_futures=True)
        self.http.end()
        for adapter in self.adapters:
            adapter.stop(_remaining(deadline))
        if self._register is not None:
            self._register.stop(_remaining(deadline))
        done &= self.scheduler.stop(_remaining(deadline))
        for server in self._servers:
            done &= server.finish(_remaining(deadline))
        self._executor.shutdown(wait=False)
        # Replies that wait still cannot be sent. A connection that is
        # being made again would take long to close.
        closing = min(_CLOSE_S, _remaining(deadline))
        done &= _within(closing, self._close_bus, 'close-bus')
        self.dispose(min(_SEND_S, _remaining(deadline)))
        return done

    def dispose(self, to_send: float = _SEND_S) -> None:
        """Close the connections to the database and the collector.

        :param to_send: how long the last spans may take, in seconds
        """
        self.store.dispose()
        if self._tracer is not None:
            _within(to_send, self._tracer.close, 'send-spans')

    def _is_connected(self) -> bool:
        return not any(server.bus.fault() for server in self._servers)

    def _close_bus(self) -> None:
        for server in self._servers:
            server.bus.close()
        if self._notifier is not None:
            self._notifier.transport.cleanup()


def checked(conf: Any, starts: bool = False) -> Daemon:
    """Return the daemon of a configuration that a start could use.

    The start, a reload and commands check a configuration by this alone. No
    server is contacted.

    :param starts: have the log as the options say, for what follows
    :raises ConfigurationError: the configuration cannot be used
    """
    transport.prepare(conf)
    effective.check(conf)
    log_levels.check(conf)
    if starts:
        log_levels.set_up(conf)
        option_names.warn(conf)
    transport.rabbit(conf)
    notifier = new_notifier(conf, None, 'check')
    if notifier is not None:
        notifier.transport.cleanup()
    return Daemon(conf)


def _remaining(deadline: float) -> float:
    return max(0.1, deadline - time.monotonic())


def _within(seconds: float, work: Callable[[], None], name: str) -> bool:
    """Run work on a thread; return whether it ended in time."""
    try:
        run_within(seconds, work, name)
    except futures.TimeoutError:
        return False
    return True


class DaemonRegister(Worker):
    """A thread that keeps one entry.

    :param peers: the other daemons on the topic
    :param cast: casts a sign of life to them
    :param introspection: gets the number of daemons that differ
    :param health: has what does not work on the daemon
    :ivar entry: what is recorded, or is going to be
    """

    def __init__(
        self,
        store: Store,
        entry: Registration,
        peers: Peers,
        cast: Callable[[], None],
        introspection: Introspection,
        health: Health,
    ) -> None:
        super().__init__('daemon-register', health.thread_ended)
        self._health = health
        self._store = store
        self.entry = entry
        self._peers = peers
        self._cast = cast
        self._introspection = introspection
        self._lease = Lease(store, _LEASE, new_holder(entry.name))
        self._zones_due = 0.0
        self._stored: Registration | None = None
        text = f'release {entry.version}, configuration {entry.fingerprint}'
        self._happen('started', text)
        # When others were first seen to differ.
        self._differs_since: dict[str, float] = {}
        self._warned_of: frozenset[str] = frozenset()

    def change(self, entry: Registration) -> None:
        """Record another configuration, soon."""
        changes = effective.between(self.entry.document, entry.document)
        self._happen('reloaded', '; '.join(map(str, changes)) or 'no option')
        self.entry = entry
        self.wake()

    def refuse(self, reason: str) -> None:
        """Record that a configuration cannot be used, soon."""
        self._happen('not reloaded', reason)
        self.wake()

    def _happen(self, event: str, detail: str) -> None:
        now = time.monotonic()
        self._health.occurred.append(Occurrence(event, detail, now))

    def _record_events(self, conn: Connection) -> int:
        """Record what happened; return how much that was."""
        happened = [*self._health.occurred]
        daemons.record(conn, self.entry.name, happened)
        return len(happened)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._attempt()
            self._cast()
            self._pause(_INTERVAL_S)
        self._happen('stopped', '')
        try:
            self._store.write(self._remove)
        except errors.StoreUnavailable:
            LOG.debug('The daemon stays registered')

    def _remove(self, writer: Writer) -> None:
        daemons.remove(writer, self.entry.id)
        self._record_events(writer.conn)

    def _attempt(self) -> None:
        try:
            self._record()
            self._record_zones()
            with self._store.reading() as conn:
                others = daemons.listing(conn)
        except errors.StoreUnavailable:
            # The engine's thread logs that the database is unreachable.
            LOG.debug('No sign of life while the database is unreachable')
        except Exception:
            LOG.exception('The daemon could not be registered')
        else:
            self._compare(others)

    def _record(self) -> None:
        elsewhere = self._peers.elsewhere()
        self._introspection.daemons_elsewhere = len(elsewhere)
        entry = self.entry._replace(elsewhere=elsewhere)
        sign = entry._replace(degraded=self._health.degradations())

        def work(writer: Writer) -> int:
            changed = self._stored != entry
            if changed or not daemons.touch(writer, sign):
                daemons.prune(writer, _KEPT_S)
                daemons.register(writer, sign)
            return self._record_events(writer.conn)

        for _ in range(self._store.write(work)):
            self._health.occurred.popleft()
        if self._stored is None:
            with self._store.reading() as conn:
                store = version.store_id(conn)
            self._peers.own = Peer(entry.id, entry.name, store)
        self._stored = entry

    def _record_zones(self) -> None:
        """Record how full zones are, if no other daemon does."""
        start = time.monotonic()
        if start < self._zones_due:
            return
        usage = self._introspection.usage()
        if usage and self._lease.take():
            self._zones_due = start + self._store.write(
                lambda writer: rates.record_zones(writer, usage)
            )

    def _compare(self, others: list[dict[str, object]]) -> None:
        """Warn of daemons that are configured differently, once of each.

        Daemons that reload together differ for a moment: those count that
        still differ when they are looked at again.
        """
        own, now = self.entry, time.monotonic()
        names = {
            str(other['name'])
            for other in others
            if other['fingerprint'] != own.fingerprint
            and float(str(other['silent_for'])) < daemons.SILENT_S
        }
        since = {name: self._differs_since.get(name, now) for name in names}
        self._differs_since = since
        differing = frozenset(
            name for name in names if now - since[name] >= _INTERVAL_S
        )
        for name in sorted(differing - self._warned_of):
            LOG.warning(
                'Daemon %s, which shares the store, is configured '
                'differently: see "scheduler-manage configuration diff %s %s"',
                name,
                own.name,
                name,
            )
        if self._warned_of and not differing:
            LOG.info('All daemons that share the store are configured alike')
        self._warned_of = differing
        self._introspection.daemons_differing = len(differing)
