"""Follows the placement service: capacity and use of its providers.

The follower has a thread of its own, so that a slow answer delays no request.
Any thread may call :meth:`ProviderFollower.touch`. All providers are read
with one call now and then, those of changed hosts one by one. The same thread
undoes allocations of released claims, also between the parts of a long read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import threading
import time
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, NamedTuple

import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.compute.placement import records as placement_records
from scheduler_service.compute.placement.candidates import SharedProviders
from scheduler_service.compute.placement.client import (
    NOT_OFFERED,
    PlacementClient,
    Provider,
)
from scheduler_service.compute.placement.records import (
    MARKED_S,
    ForgottenClaims,
)
from scheduler_service.engine.health import Health
from scheduler_service.model import (
    STANDARD_FIELDS,
    HostReport,
    Resource,
    UnitLimits,
)
from scheduler_service.store import clock, schema
from scheduler_service.store.connection import Store, in_chunks
from scheduler_service.store.writing import hosts as host_rows
from scheduler_service.worker import Worker

_BAD = 400


def _read_all(
    client: PlacementClient, custom: Iterable[str]
) -> tuple[set[str], dict[str, Provider]]:
    """Read all providers, with one call for processors and for each class.

    :param custom: resource classes of nodes that have no processors
    :return: the uuids of all root providers, and by uuid those with a free
        processor or with some free capacity of one of these classes
    """
    uuids = client.provider_uuids()
    providers = client.providers('VCPU')
    for name in custom:
        try:
            providers = {**client.providers(name), **providers}
        except errors.PlacementUnavailable as fault:
            # The service no longer has the class.
            if fault.facts.get('status') != _BAD:
                raise
    return uuids, providers


def _report(node: Any, provider: Provider, counted: list[str]) -> HostReport:
    """Return the host report of a provider.

    Capacity is (total - reserved) x allocation ratio; so the reported ratio
    is 1.

    :param counted: instances whose claims the provider's use includes
    """
    changes: dict[str, Any] = {
        'resources': {
            name: Resource(
                total=max(total, 0), used=provider.used.get(name, 0)
            )
            for name, total in provider.capacity.items()
            if name not in STANDARD_FIELDS
        },
        'traits': provider.traits,
        'child_traits': [*provider.child_traits],
    }
    for name, (total, used, ratio) in STANDARD_FIELDS.items():
        changes[total] = max(provider.capacity.get(name, 0), 0)
        changes[used] = provider.used.get(name, 0)
        changes[ratio] = 1.0
    if provider.units is not None:
        changes['units'] = provider.units
    return HostReport(node.host, node.node, changes, counted=counted)


LOG = logging.getLogger(__name__)
_CAUSE = 'placement'
_IDLE_S = 1.0
_HOSTS_AT_ONCE = 500
# Hosts that are read one by one in a turn; if more changed, all are read.
_ONE_BY_ONE = 40
# All are read again at the earliest after this time, in seconds.
_PAUSE_S = 5.0
# A host that changed is read once more after this time, in seconds: the
# compute service saves its rows before it deletes allocations.
_AGAIN_S = 5.0
# The longest wait for hosts that are awaited, in seconds.
_CATCH_UP_S = 10.0
# Providers whose bounds are read in a turn, and the shortest time between
# turns: a few percent of the calls that the service can answer.
_AT_ONCE = 2
_TURN_S = 1.0
# Pauses between tries to read the provider of a new node, in seconds.
_NEW_LEAST_S, _NEW_MOST_S = 0.2, 60.0


class _Node(NamedTuple):
    id: int
    host: str
    node: str
    uuid: str


@dataclasses.dataclass(slots=True)
class _New:
    """A node that is written once its provider is read.

    :ivar since: monotonic time since which it is new
    :ivar due_at: monotonic time of the next try
    """

    report: HostReport
    since: float
    due_at: float = 0.0


class ProviderFollower(Worker):
    """A thread that keeps hosts' capacity equal to that of their providers.

    :ivar interval: seconds after which all providers are read again
    :param leading: whether this daemon is the one that reads all
    :param shared: providers that several hosts share
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
        super().__init__('providers', health.thread_ended)
        self._store = store
        self._client = client
        self._health = health
        self.interval = interval
        self._leading = leading
        self._shared = shared
        self._lock = threading.Lock()
        # Host -> whether to read it once more afterwards.
        self._touched: dict[str, bool] = {}
        # Host -> monotonic time at which it is read once more.
        self._again: dict[str, float] = {}
        # The latest time that _read_later set.
        self._later_at = 0.0
        # (host, node) -> a node that is not in the store yet.
        self._new: dict[tuple[str, str], _New] = {}
        # Hosts that are waited for, with what is set once they are read.
        self._awaited: list[tuple[Sequence[str], threading.Event]] = []
        # Called after the next read of all providers.
        self._then: Callable[[], None] | None = None
        self._checked = False
        self._read_all_at = -1e9
        self._claims = ForgottenClaims(store, client, health)
        # Nodes whose bounds are to be read, and providers of which they were
        # since this daemon leads.
        self._unread: list[_Node] = []
        self._bounded: set[str] = set()
        self._without_vcpus: set[str] = set()
        self._units_at = 0.0
        self._added_at = 0.0
        # Provider -> hash of what was last written.
        self._written: dict[str, int] = {}

    def touch(self, hosts: Iterable[str]) -> None:
        """Read the providers of service hosts soon, and once more later."""
        with self._lock:
            self._touched.update(dict.fromkeys(hosts, True))
        self.wake()

    def catch_up(self, hosts: Sequence[str]) -> bool:
        """Read the providers of service hosts, and wait for it for a while.

        Claims on them whose allocations the compute service deleted are
        released.

        :return: whether there are any
        """
        done = threading.Event()
        with self._lock:
            if not hosts or self._stopping.is_set():
                return False
            self._awaited.append((hosts, done))
        self.wake()
        done.wait(_CATCH_UP_S)
        return True

    def add_new(
        self,
        cell_uuid: str,
        hosts: Collection[str] | None,
        reports: Sequence[HostReport],
    ) -> None:
        """Write new nodes once their providers are read; see ``Applier``."""
        with self._lock:
            self._new = {
                key: new
                for key, new in self._new.items()
                if new.report.changes['cell_uuid'] != cell_uuid
                or (hosts is not None and new.report.host not in hosts)
            }
            for report in reports:
                key = report.host, report.node
                self._new[key] = _New(report, time.monotonic())
        if reports:
            self.wake()

    def read_new(self, since: float = math.inf) -> bool:
        """Wait for a while until new nodes were tried.

        :param since: monotonic time
        :return: whether there were any, or some were written since then
        """
        with self._lock:
            hosts = {host for host, _ in self._new}
        return self.catch_up(sorted(hosts)) or self._added_at >= since

    def read_all(self, then: Callable[[], None]) -> None:
        """Read all providers again, soon.

        :param then: called by the thread after it has written all of them
        """
        with self._lock:
            self._then = then
        self.wake()

    def _run(self) -> None:
        while not self._stopping.is_set():
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
            with self._lock:
                asked_for = self._awaited or self._touched or self._then
                dues = [new.due_at for new in self._new.values()]
            pause = 0.0
            if not (done and asked_for):
                least = 0.0 if done else _IDLE_S
                due_in = min(dues, default=1e9) - time.monotonic()
                pause = min(max(due_in, least), _IDLE_S)
            self._pause(pause)
            # Several hosts that change together are read together.
            time.sleep(0.05)
        for _, awaited in self._awaited:
            awaited.set()

    def poll(self) -> None:
        """Read the providers that are due, and release forgotten claims.

        :raises PlacementUnavailable: the service does not answer
        :raises StoreUnavailable: our database does not answer
        """
        if not self._checked:
            self._client.check()
            self._checked = True
        self._shared.follow()
        self._touch_again()
        self._read_awaited()
        if not self._leading():
            self._read_all_at = -1e9
            self._bounded.clear()
            # The daemon that leads now waits for its own read of all.
            self._then = None
            self._new = {}
            self._read_touched()
            return
        age = time.monotonic() - self._read_all_at
        many = len(self._touched) > _ONE_BY_ONE and age > _PAUSE_S
        if many or self._then or age > self.interval:
            self._read_all_then()
        else:
            self._read_touched()
        self._claims.sweep()
        self._read_units()

    def _read_all_then(self) -> None:
        """Read all, then call the callback registered before the read."""
        then = self._then
        self._read_all(first=then is not None)
        if then is not None:
            then()
            with self._lock:
                if self._then is then:
                    self._then = None

    def _read_new(self, awaited: Collection[str]) -> None:
        """Write the new nodes whose providers have capacity by now.

        Those that have none are tried again, and less often with time.

        :param awaited: service hosts that are tried in any case
        """
        now = time.monotonic()
        for key, new in list(self._new.items()):
            if now < new.due_at and key[0] not in awaited:
                continue
            report = new.report
            uuid = report.changes['uuid']
            provider = self._client.provider(uuid)
            is_new = self._new.get(key) is new
            if provider is None or not (provider.capacity and is_new):
                later = min(now - new.since, _NEW_MOST_S)
                new.due_at = now + max(later, _NEW_LEAST_S)
                continue
            node = _Node(0, report.host, report.node, uuid)
            read = _report(node, self._shared.add_to(provider), [])
            changes = {**report.changes, **read.changes}
            self._write_reports(
                [HostReport(report.host, report.node, changes)]
            )
            # The compute service writes traits after the amounts.
            self._again[report.host] = now + _AGAIN_S
            self._added_at = time.monotonic()
            with self._lock:
                if self._new.get(key) is new:
                    del self._new[key]

    def _read_awaited(self) -> set[str]:
        """Have the store catch up on the hosts that are waited for.

        :return: those service hosts
        """
        with self._lock:
            awaited, self._awaited = self._awaited, []
        hosts = {host for each, _ in awaited for host in each}
        try:
            self._read_new(hosts)
            nodes = self._nodes(sorted(hosts)) if hosts else []
            if nodes:
                ids = [node.id for node in nodes]
                self._await_marks(ids)
                self._claims.release_forgotten_on(ids)
                self._read_nodes(nodes, urgent=True)
        finally:
            for _, done in awaited:
                done.set()
        return hosts

    def _touch_again(self) -> None:
        now = time.monotonic()
        due = [host for host, at in self._again.items() if at <= now]
        with self._lock:
            for host in due:
                del self._again[host]
                self._touched.setdefault(host, False)

    @contextlib.contextmanager
    def _taken(
        self, count: int | None = None, again: bool = True
    ) -> Iterator[list[str]]:
        """Yield touched hosts, which stay touched if they cannot be read.

        :param count: the largest number; None: all
        :param again: whether changed hosts are read once more later
        """
        with self._lock:
            hosts = [*itertools.islice(self._touched, count)]
            taken = {host: self._touched.pop(host) for host in hosts}
        try:
            yield hosts
        except (errors.PlacementUnavailable, errors.StoreUnavailable):
            with self._lock:
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

        :param first: whether the hosts were just read for the first time, so
            that they did not change
        """
        with self._taken(again=not first):
            self._claims.mark_made()
            read_at, since = time.monotonic(), self._now()
            nodes = self._nodes()
            self._unread = [
                node for node in nodes if node.uuid not in self._bounded
            ]
            if not nodes:
                self._read_all_at = read_at
                return
            uuids, providers = _read_all(self._client, self._custom_classes())
            self._write(
                {
                    node: providers.get(node.uuid)
                    or Provider(node.uuid, {}, {}, [])
                    for node in nodes
                    if node.uuid in providers or node.uuid not in uuids
                },
                since,
            )
        self._read_all_at = read_at
        # Providers without free capacity of any class are not in the answers.
        full = [
            node
            for node in nodes
            if node.uuid in uuids and node.uuid not in providers
        ]
        for part in in_chunks(full, _ONE_BY_ONE):
            self._read_nodes(part)
            # Hosts that changed go before the rest.
            self._read_awaited()
            self._read_touched()
            self._claims.sweep()

    def _read_touched(self) -> None:
        with self._taken(_ONE_BY_ONE) as hosts:
            self._read_nodes(self._nodes(hosts) if hosts else ())

    def _read_nodes(
        self, nodes: Sequence[_Node], urgent: bool = False
    ) -> None:
        """Read the providers of nodes one by one, and write them.

        :param urgent: whether a refusal waits for them; else those go before
        """
        if not nodes:
            return
        self._claims.mark_made([node.id for node in nodes])
        since = self._now()
        providers: dict[_Node, Provider] = {}
        for node in nodes:
            if self._awaited and not urgent:
                # What was read of them before is out of date then.
                newer = self._read_awaited()
                providers = {
                    each: read
                    for each, read in providers.items()
                    if each.host not in newer
                }
            provider = self._client.provider(node.uuid)
            providers[node] = provider or Provider(node.uuid, {}, {}, [])
        self._write(providers, since)
        self._note_bounds(
            (node, each.units) for node, each in providers.items()
        )

    def _note_bounds(
        self, read: Iterable[tuple[_Node, Mapping[str, UnitLimits] | None]]
    ) -> None:
        """Note whose bounds are read, and which of them have no vCPUs."""
        for node, units in read:
            self._bounded.add(node.uuid)
            if units and units.get('VCPU') == NOT_OFFERED:
                self._without_vcpus.add(node.uuid)
            else:
                self._without_vcpus.discard(node.uuid)

    def _read_units(self) -> None:
        """Read the bounds of a few providers, which a read of all lacks."""
        if time.monotonic() - self._units_at < _TURN_S:
            return
        self._units_at = time.monotonic()
        due = self._unread[-_AT_ONCE:]
        # A report of a host that was removed meanwhile would add it again.
        present = self._nodes([node.host for node in due]) if due else []
        read = {
            node: self._client.units(node.uuid)
            for node in due
            if node in present and node.uuid not in self._bounded
        }
        reports = [
            HostReport(node.host, node.node, {'units': units})
            for node, units in read.items()
        ]
        if reports:
            self._write_reports(reports)
        self._note_bounds(read.items())
        del self._unread[-_AT_ONCE:]

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
        """Write capacity and use of providers.

        :param since: time by the database's clock before they were read:
            claims made until then are in their use
        """
        self._await_marks()
        for part in in_chunks(providers.items(), _HOSTS_AT_ONCE):
            ids = [node.id for node, _ in part]
            with self._store.reading() as conn:
                counted, others = placement_records.made_before(
                    conn, ids, since
                )
            reports = []
            for node, alone in part:
                provider = self._shared.add_to(alone)
                if 'VCPU' in provider.capacity and provider.units is None:
                    provider = self._with_vcpus(node, provider)
                instances = sorted(counted.get(node.id, ()))
                # A host that was removed and came back has a new row.
                read = str(provider._replace(units=None))
                mark = hash((node.id, read, *instances))
                is_written = self._written.get(node.uuid) == mark
                if not is_written or instances or provider.units is not None:
                    reports.append(_report(node, provider, instances))
                self._written[node.uuid] = mark
            if reports:
                self._write_reports(reports)
            self._read_later(
                node.host for node, _ in part if node.id in others
            )

    def _read_later(self, hosts: Iterable[str]) -> None:
        """Read service hosts once more, little by little.

        A claim that was made while they were read counts twice until then.
        """
        for host in hosts:
            if host not in self._again:
                earliest = time.monotonic() + _AGAIN_S
                due_at = max(self._later_at + _TURN_S / _AT_ONCE, earliest)
                self._again[host] = self._later_at = due_at

    def _with_vcpus(self, node: _Node, provider: Provider) -> Provider:
        """Return a provider without the bound that it has no vCPUs."""
        if node.uuid not in self._without_vcpus:
            return provider
        # All bounds are read again soon.
        self._without_vcpus.discard(node.uuid)
        self._bounded.discard(node.uuid)
        return provider._replace(units={})

    def _await_marks(self, host_ids: Sequence[int] | None = None) -> None:
        """Wait until allocations made just now are recorded.

        :param host_ids: on these hosts; None: on any
        """
        with self._store.reading() as conn:
            unmarked = placement_records.has_unmarked(conn, host_ids)
        if unmarked:
            time.sleep(MARKED_S)

    def _write_reports(self, reports: Sequence[HostReport]) -> None:
        try:
            self._store.write(lambda writer: host_rows.report(writer, reports))
        except Exception:
            self._written.clear()
            raise
