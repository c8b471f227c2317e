"""Keeps a daemon's entry among the daemons that share the store.

Owns the thread that writes it: who the daemon is, how it is configured, and
every few seconds a sign of life, also over the bus. The thread warns where
others that live are configured differently, or have another store: then the
same request may be decided differently, by whichever takes it. Every ten
minutes the thread of one of them records how full zones are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.conf import effective
from scheduler_service.engine.health import Health
from scheduler_service.introspection import Introspection
from scheduler_service.moments import Occurrence
from scheduler_service.rpc.peers import Peer, Peers
from scheduler_service.store import version
from scheduler_service.store.connection import Store, Writer
from scheduler_service.store.records import daemons, event_log, rates
from scheduler_service.store.records.daemons import Registration
from scheduler_service.store.records.leases import Lease, new_holder
from scheduler_service.worker import Worker

LOG = logging.getLogger(__name__)
_INTERVAL_S = 5.0
# Daemons that ended without a word are forgotten after a day.
_KEPT_S = 86_400.0
_LEASE = 'zone-usage'


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
        event_log.record(conn, self.entry.name, happened)
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
