"""Follows the placement service: what hosts have, and what is used of it.

Owns a thread, so that a slow answer holds up nobody. Any thread may call
:meth:`ProviderFollower.touch`. All providers are read with one call now and
then, those whose hosts changed one by one. The same thread undoes allocations
of claims that are held no more, also between the parts of a long read.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.mirror import provider_reads
from scheduler_service.mirror.early_providers import EarlyProviders
from scheduler_service.mirror.left_claims import LeftClaims
from scheduler_service.mirror.provider_units import ProviderUnits
from scheduler_service.model import HostReport
from scheduler_service.placement.client import PlacementClient, Provider
from scheduler_service.placement.sharing import SharedProviders
from scheduler_service.store import clock, schema
from scheduler_service.store.claims import placement_records
from scheduler_service.store.connection import Store, in_chunks
from scheduler_service.store.writing import hosts as host_rows

LOG = logging.getLogger(__name__)
_CAUSE = 'placement'
_IDLE_S = 1.0
_HOSTS_AT_ONCE = 500
# So many hosts are read one by one in a turn; if more changed, all are read.
_ONE_BY_ONE = 40
# All are read again at the earliest after this time, in seconds.
_PAUSE_S = 5.0
# How often it is looked, at the start, whether this daemon leads, in seconds.
_LOOK_S = 0.2
# A host that changed is read once more after this time, in seconds: the
# compute service saves its rows before it deletes allocations.
_AGAIN_S = 5.0
# Within this time it is recorded that allocations were made.
_MARKING_S = 0.4


class _Node(NamedTuple):
    id: int
    host: str
    node: str
    uuid: str


class ProviderFollower:
    """A thread that keeps hosts' capacity like that of their providers.

    :ivar interval: seconds after which all providers are read again
    :param leading: whether this daemon is the one that reads all
    :param shared: what hosts have of providers that others have, too
    """

    def __init__(
        self,
        store: Store,
        client: PlacementClient,
        health: Health,
        interval: float,
        leading: Callable[[], bool],
        shared: SharedProviders,
    ) -> None:
        self._store = store
        self._client = client
        self._health = health
        self.interval = interval
        self._leading = leading
        self._shared = shared
        self._changed = threading.Condition()
        # Host -> whether it is to be read once more after that.
        self._touched: dict[str, bool] = {}
        # Host -> monotonic time at which it is read once more.
        self._again: dict[str, float] = {}
        # What to call after the whole read that somebody waits for.
        self._then: Callable[[], None] | None = None
        # Whether all hosts were there at a read, since this daemon leads.
        self._passed = False
        # Read before they all were, to be used when they are.
        self._early = EarlyProviders()
        self.complete_new = self._early.complete
        self._stopping = False
        self._checked = False
        self._read_all_at = -1e9
        self._claims = LeftClaims(store, client, health)
        self._units = ProviderUnits(store, client)
        # Hash of what was last written of each provider.
        self._written: dict[str, int] = {}
        self._thread = threading.Thread(
            target=self._run, name='providers', daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End the thread.

        :param timeout: seconds to wait for it
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def touch(self, hosts: Iterable[str]) -> None:
        """Read the providers of service hosts soon, and once more later."""
        with self._changed:
            self._touched.update(dict.fromkeys(hosts, True))
            self._changed.notify()

    def read_all(self, then: Callable[[], None]) -> None:
        """Read all providers again, soon.

        :param then: called by the thread after it has written all of them
        """
        with self._changed:
            self._then = then
            self._changed.notify()

    def _run(self) -> None:
        look_until = time.monotonic() + _IDLE_S
        while not self._stopping:
            done = False
            try:
                self.poll()
                self._health.recover(_CAUSE)
                done = True
            except errors.PlacementUnavailable as error:
                self._checked = False
                self._health.degrade(
                    _CAUSE, str(error), 'The placement service answers again'
                )
            except errors.StoreUnavailable:
                LOG.debug('Providers wait until the database is reachable')
            except Exception:
                LOG.exception('Providers could not be mirrored')
            with self._changed:
                due = done and (self._touched or self._then)
                if not due and not self._stopping:
                    started = self._leading() or time.monotonic() > look_until
                    self._changed.wait(_IDLE_S if started else _LOOK_S)
            # Several hosts that change together are read together.
            time.sleep(0.05)

    def poll(self) -> None:
        """Read what is due, and undo what is to be undone.

        :raises PlacementUnavailable: the service does not answer
        :raises StoreUnavailable: our database does not answer
        """
        if not self._checked:
            self._client.check()
            self._checked = True
        self._shared.follow()
        self._touch_again()
        if not self._leading():
            self._read_all_at = -1e9
            self._passed = False
            # Whoever leads now waits for a whole read of its own.
            self._then = None
            self._read_touched()
            return
        age = time.monotonic() - self._read_all_at
        many = len(self._touched) > _ONE_BY_ONE and age > _PAUSE_S
        if many or self._then or age > self.interval:
            self._read_all_then()
        else:
            self._read_touched()
        self._claims.sweep()
        self._units.read_some()

    def _read_all_then(self) -> None:
        """Read all, and call whoever waited for it before it began."""
        with self._changed:
            then, self._then = self._then, None
        try:
            self._read_all(first=then is not None)
            if then is not None:
                then()
        except Exception:
            with self._changed:
                self._then = self._then or then
            raise

    def _touch_again(self) -> None:
        """Have hosts read that are due once more."""
        now = time.monotonic()
        due = [host for host, at in self._again.items() if at <= now]
        with self._changed:
            for host in due:
                del self._again[host]
                self._touched.setdefault(host, False)

    @contextlib.contextmanager
    def _taken(
        self, count: int | None = None, again: bool = True
    ) -> Iterator[list[str]]:
        """Yield touched hosts, which stay touched if they cannot be read.

        :param count: at most so many; None: all
        :param again: whether those that changed are read once more later
        """
        with self._changed:
            hosts = [*itertools.islice(self._touched, count)]
            taken = {host: self._touched.pop(host) for host in hosts}
        try:
            yield hosts
        except (errors.PlacementUnavailable, errors.StoreUnavailable):
            with self._changed:
                for host, changed in taken.items():
                    self._touched[host] = changed or self._touched.get(
                        host, False
                    )
            raise
        due_at = time.monotonic() + _AGAIN_S
        self._again.update(
            (host, due_at)
            for host, changed in taken.items()
            if changed and again
        )

    def _read_all(self, first: bool) -> None:
        """Read all providers.

        :param first: whether the hosts were just read for the first time:
            they did not change
        """
        with self._taken(again=not first):
            every = self._early.take() if first else None
            if every is None:
                every = provider_reads.read_all(
                    self._client, self._now(), self._custom_classes()
                )
            since, known, found, read_at = every
            if not first and not self._passed:
                self._early.put(every)
            if not self._passed:
                self._units.load()
            self._passed |= first
            nodes = self._nodes()
            self._units.follow(node.uuid for node in nodes)
            self._write(
                {
                    node: found.get(node.uuid)
                    or Provider(node.uuid, {}, {}, [])
                    for node in nodes
                    if node.uuid in found or node.uuid not in known
                },
                since,
            )
        if first:
            self._early.forget()
        self._read_all_at = read_at
        # Those that have nothing left of any class are not in the answers.
        full = [node for node in nodes
                if node.uuid in known and node.uuid not in found]  # fmt: skip
        for part in in_chunks(full, _ONE_BY_ONE):
            self._read_nodes(part)
            # What somebody waits for goes before the rest.
            self._read_touched()
            self._claims.sweep()

    def _read_touched(self) -> None:
        with self._taken(_ONE_BY_ONE) as hosts:
            self._read_nodes(self._nodes(hosts) if hosts else ())

    def _read_nodes(self, nodes: Sequence[_Node]) -> None:
        """Read providers of nodes, one by one."""
        if not nodes:
            return
        since = self._now()
        found = {}
        for node in nodes:
            provider = self._client.provider(node.uuid)
            found[node] = provider or Provider(node.uuid, {}, {}, [])
            self._units.put(node.uuid, found[node].units or {})
        self._write(found, since)

    def _custom_classes(self) -> list[str]:
        """Return the resource classes of nodes that have no processors."""
        table, processors = schema.inventories, schema.inventories.alias()
        query = (
            sa.select(table.c.resource_class)
            .distinct()
            .join_from(
                table, schema.hosts, table.c.host_id == schema.hosts.c.id
            )
            .where(
                schema.hosts.c.cell_uuid.is_not(None),
                table.c.resource_class.startswith('CUSTOM_', autoescape=True),
                table.c.total > 0,
                ~sa.exists().where(
                    processors.c.host_id == table.c.host_id,
                    processors.c.resource_class == 'VCPU',
                    processors.c.total > 0,
                ),
            )
        )
        with self._store.reading() as conn:
            return sorted(conn.execute(query).scalars())

    def _now(self) -> float:
        """Return the time of the store's database."""
        with self._store.reading() as conn:
            return clock.read(conn)

    def _nodes(self, hosts: Sequence[str] | None = None) -> list[_Node]:
        table = schema.hosts
        query = sa.select(
            table.c.id, table.c.host, table.c.node, table.c.uuid
        ).where(table.c.cell_uuid.is_not(None))
        if hosts is not None:
            query = query.where(table.c.host.in_(hosts))
        with self._store.reading() as conn:
            return [_Node(*row) for row in conn.execute(query)]

    def _write(
        self, providers: Mapping[_Node, Provider], since: float
    ) -> None:
        """Write what providers have.

        :param since: time by the database's clock before they were read:
            claims that were made until then are in their use
        """
        self._await_marks()
        for part in in_chunks(providers.items(), _HOSTS_AT_ONCE):
            ids = [node.id for node, _ in part]
            with self._store.reading() as conn:
                counted = placement_records.counted(conn, ids, since)
            reports = []
            for node, alone in part:
                provider = self._shared.add_to(alone)
                listed = sorted(counted.get(node.id, ()))
                # A host that was removed and comes back is a new row.
                units = self._units.of(node.uuid)
                mark = hash((node.id, str((provider[:4], units)), *listed))
                written = self._early.has_written(alone)
                if written and provider is alone and not units:
                    self._written[node.uuid] = mark
                if self._written.get(node.uuid) != mark or listed:
                    reports.append(
                        provider_reads.report(node, provider, units, listed)
                    )
                self._written[node.uuid] = mark
            if reports:
                self._write_reports(reports)

    def _await_marks(self) -> None:
        """Let it be recorded which claims were made just before a read."""
        with self._store.reading() as conn:
            unmarked = placement_records.has_unmarked(conn)
        if unmarked:
            time.sleep(_MARKING_S)

    def _write_reports(self, reports: Sequence[HostReport]) -> None:
        try:
            self._store.write(lambda writer: host_rows.report(writer, reports))
        except Exception:
            self._written.clear()
            raise
