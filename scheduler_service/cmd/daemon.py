"""The daemon: builds its parts at the start, and reconfigures them.

``cmd.process`` handles signals and ends the process.
"""

from __future__ import annotations

import logging
import os
import platform
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

from scheduler_service import policies, tracing
from scheduler_service.cmd import adapters
from scheduler_service.cmd.connections import new_store, registration
from scheduler_service.cmd.daemon_register import DaemonRegister
from scheduler_service.cmd.program import run_within
from scheduler_service.cmd.serving import HttpServing
from scheduler_service.factory import build, plan
from scheduler_service.model import documents
from scheduler_service.rpc import transport
from scheduler_service.rpc.call_monitor import CallMonitor
from scheduler_service.rpc.cast_replies import CastReplySender, new_notifier
from scheduler_service.rpc.delivery import RedeliveryWorker
from scheduler_service.rpc.endpoints import VERSION, SchedulerEndpoint
from scheduler_service.rpc.host_state import HostStateEndpoint
from scheduler_service.rpc.incoming import ArgumentParser
from scheduler_service.rpc.reply_publisher import ReplyPublisher
from scheduler_service.rpc.server import (
    Dispatcher,
    LateAckServer,
    new_server,
)
from scheduler_service.scheduler import Scheduler

LOG = logging.getLogger(__name__)
# How long a stopping daemon waits for an unreachable broker, in seconds.
UNREACHABLE_S = 2.0
# How long the connections to the broker may take to close, in seconds.
_CLOSE_S = 5.0
# How long the last spans may take to reach their collector, in seconds.
_SEND_S = 2.0


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
        self._url = transport_url
        self._enforcer = policies.Enforcer(conf)
        self._publisher = ReplyPublisher(self.scheduler.health)
        self._redelivery = RedeliveryWorker(
            self.scheduler.quarantine, self._publisher
        )
        self._monitor = CallMonitor(self.scheduler.health)
        self._servers: list[LateAckServer] = []
        self._transports: list[Any] = []
        self._parser = ArgumentParser()
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
        self._publisher.start()
        if not self.scheduler.start(self._is_filled):
            return
        bus = transport.for_server(self.conf, self._url)
        notifications = transport.for_notifications(self.conf, self._url)
        self._transports = [bus, notifications]
        more = [
            served
            for adapter in self.adapters
            for served in adapter.endpoints(self.conf, self.name, bus)
        ]
        self._transports += [used for used, *_ in more if used is not bus]
        self.scheduler.health.add_check(self._publisher.check_health)
        self.scheduler.health.add_check(self._check_broker)
        self._pause_with_the_database()
        notifier = new_notifier(
            self.conf, notifications, f'scheduler.{self.name}'
        )
        scheduling = SchedulerEndpoint(
            self.scheduler,
            self._enforcer,
            CastReplySender(bus, notifier),
            self._parser,
            self.name,
        )
        host_state = HostStateEndpoint(
            self.scheduler.host_state_writer, self._enforcer, self._parser
        )
        group = self.conf.scheduler
        target = transport.target(group.exchange, group.topic, self.name)
        own = Dispatcher([scheduling, host_state], VERSION)
        self._serve(bus, target, own)
        for served in more:
            self._serve(*served)
        self._monitor.start()
        self._redelivery.start()
        for adapter in self.adapters:
            adapter.start()
        for server in self._servers:
            server.start()
        # Last: the entry includes options that libraries registered above.
        entry = registration(self.conf, self.name, uuid.uuid4().hex)
        self._register = DaemonRegister(self.store, entry)
        self._register.start()

    def _is_filled(self) -> bool:
        """Whether every adapter's data for requests is in the store.

        :raises StoreUnavailable: the database does not answer
        """
        return all(adapter.is_filled() for adapter in self.adapters)

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
        server.tracer = self._tracer
        self._servers.append(server)

    def _pause_with_the_database(self) -> None:
        """Let the buses pause while the database is unreachable."""
        drivers = [used._driver for used in self._transports]
        pausing = [driver for driver in drivers if hasattr(driver, 'pause')]
        monitor = self.scheduler.store_monitor
        monitor.pause = lambda: _each(pausing, 'pause')
        monitor.resume = lambda: _each(pausing, 'resume')

    def reconfigure(self, conf: Any) -> Callable[[], None]:
        """Check a configuration as a whole; return a function to apply it.

        The function waits for the end of the batch under way. No request is
        lost, and each is decided by a single configuration.

        :param conf: parsed options; those that need a restart have their
            running values
        :raises ConfigurationError: the configuration cannot be used, and
            nothing is changed
        """
        made = plan(conf, adapters.policy(conf))
        checked = [adapter.check(conf) for adapter in self.adapters]
        policy = policies.Enforcer(conf)
        serve = self.http.check(conf)
        decide = self.scheduler.check(made)

        def apply() -> None:
            decide().result()
            self._enforcer.adopt(policy)
            serve()
            for apply_options in checked:
                apply_options()
            self.conf = conf
            if self._register is not None:
                entry = self._register.entry
                changed = registration(conf, entry.name, entry.id)
                self._register.change(changed)

        return apply

    def _check_broker(self) -> None:
        """Report to health whether requests and heartbeats can arrive."""
        if self._is_connected():
            self.scheduler.health.recover('broker')
        else:
            reason = self._broker_fault()
            self.scheduler.health.degrade(
                'broker',
                f'broker unreachable{f" ({reason})" if reason else ""}',
                'Broker reachable again',
            )
            self.scheduler.host_state_writer.reset_liveness()

    def _broker_fault(self) -> str:
        """Return why a broker is unreachable; empty if unknown."""
        faults = [
            getattr(used._driver, 'fault', str)() for used in self._transports
        ]
        return next(filter(None, faults), '')

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
            done &= _within(_left(deadline), server.stop, 'stop-consuming')
        if self._servers:
            self._redelivery.stop()
            self._monitor.stop()
        self.http.end()
        for adapter in self.adapters:
            adapter.stop(_left(deadline))
        if self._register is not None:
            self._register.stop(_left(deadline))
        done &= self.scheduler.stop(_left(deadline))
        done &= self._publisher.stop(_left(deadline))
        # Replies that are still left cannot be sent. A connection that is
        # being made again would take long to close.
        closing = min(_CLOSE_S, _left(deadline))
        done &= _within(closing, self._close_bus, 'close-bus')
        self.store.dispose()
        if self._tracer is not None:
            sending = min(_SEND_S, _left(deadline))
            _within(sending, self._tracer.close, 'send-spans')
        return done

    def _is_connected(self) -> bool:
        """Whether the drivers report connections to the broker."""
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
        run_within(seconds, work, name)
    except futures.TimeoutError:
        return False
    return True
