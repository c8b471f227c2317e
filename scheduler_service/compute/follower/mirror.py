"""Follows the compute service's databases, for all daemons of a store.

The mirror has a thread that reads and writes. :meth:`Mirror.wake`,
:meth:`Mirror.read_all` and :meth:`Mirror.use` may be called by any thread; all
else belongs to the mirror's own, which waits for a few threads that read the
cells in parallel.
"""

from __future__ import annotations

import datetime
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from scheduler_service import errors
from scheduler_service.compute.follower import databases
from scheduler_service.compute.follower.applying import Applier, OnNew
from scheduler_service.compute.follower.cells import (
    OVERLAP_S,
    CellReader,
    MirrorOptions,
    translated_aggregates,
)
from scheduler_service.compute.follower.databases import (
    Cell,
    ReadOnlyDatabase,
    filled_in,
)
from scheduler_service.engine.health import Health
from scheduler_service.store.connection import Store
from scheduler_service.store.driver_errors import driver_fault, first_line
from scheduler_service.store.records import leases
from scheduler_service.store.records.leases import Lease, LeaseLost, Progress
from scheduler_service.worker import Worker

LOG = logging.getLogger(__name__)
_API = 'compute-api-database'
_LEASE = 'mirror'
# Notifications within this time wake the thread once, in seconds.
_SETTLE_S = 0.03
_READERS = 8
# Hosts are current for this time after a read, in seconds, or for three poll
# intervals if that is longer.
_CURRENT_S = 10.0
# The longest wait for changes that a refusal waits for, in seconds.
_CATCH_UP_S = 1.0


class Mirror(Worker):
    """A thread that copies the compute service's databases into our store.

    Of all daemons of a store, the one that holds a lease leads: it reads and
    writes.

    :param holder: this daemon's unique name
    :param on_hosts: called with service hosts that were read again
    :param on_lead: called when this daemon becomes the leader
    :param on_pass: called after its first complete pass as the leader
    :param on_new: after that pass, gets nodes that are new; see ``Applier``
    :ivar leading: whether this daemon is the leader
    :ivar cell_url: gives the URL of a cell's database from that of its mapping
        and that which fills it in; may be replaced before the start
    :raises ConfigurationError: a URL cannot be used
    """

    def __init__(
        self,
        store: Store,
        options: MirrorOptions,
        health: Health,
        holder: str,
        on_hosts: Callable[[Sequence[str]], None] | None = None,
        on_lead: Callable[[], None] = lambda: None,
        on_pass: Callable[[], None] = lambda: None,
        on_new: OnNew | None = None,
    ) -> None:
        super().__init__('mirror', health.thread_ended)
        self._options = options
        # Options to use from the next turn on.
        self._next: MirrorOptions | None = None
        self._health = health
        self._on_hosts = on_hosts
        self._on_lead = on_lead
        self._on_pass = on_pass
        self._on_new = on_new
        self._lease = Lease(store, _LEASE, holder)
        self._applier = Applier(store, self._lease.keep)
        self._api = self._database(options.api_database)
        self.cell_url: Callable[[str, str], str] = filled_in
        self._cells: dict[Cell, CellReader] = {}
        # Of another thread.
        self._queried: dict[Cell, ReadOnlyDatabase] = {}
        # Called after the next turn, which reads everything.
        self._then: Callable[[], None] | None = None
        self._fingerprints: list[Row[Any]] = []
        # Whether the URL of a cell cannot be used.
        self._lacks_cell = False
        # Monotonic time before the last turn that read every database.
        self._current_at = -1e9
        self.leading = False
        self._passed = False
        # Set after the next read of all changes.
        self._awaited: list[threading.Event] = []
        self._readers = ThreadPoolExecutor(_READERS, 'cells')

    @property
    def is_current(self) -> bool:
        """Whether this daemon leads, and has just read every database."""
        longest = max(_CURRENT_S, 3 * self._options.poll_interval)
        age = time.monotonic() - self._current_at
        return self.leading and age < longest

    def read_cells(
        self, query: Callable[[sa.Connection], Iterable[Any]]
    ) -> tuple[list[Any], bool]:
        """Return what a query finds in all cells, cell0 too.

        One other thread calls it.

        :return: beside that, whether all of them answered
        """
        options, found = self._options, list[Any]()
        base = options.cell_database or options.api_database
        try:
            with self._api.reading() as conn:
                cells = databases.cells(conn, with_cell0=True)
            for cell in cells:
                database = self._queried.get(cell)
                if database is None:
                    database = self._database(self.cell_url(cell.url, base))
                    self._queried[cell] = database
                with database.reading() as conn:
                    found += query(conn)
        except (sa.exc.SQLAlchemyError, errors.ConfigurationError):
            return found, False
        return found, True

    def stop(self, timeout: float) -> bool:
        """End the thread, and let another daemon go on at once."""
        ended = super().stop(timeout)
        self._readers.shutdown(wait=False, cancel_futures=True)
        return ended

    def use(self, options: MirrorOptions) -> None:
        """Use other options from the next turn on.

        Where they differ, connections are made anew and everything is read.

        :param options: with the same databases
        """
        self._next = options
        self.wake()

    def catch_up(self) -> bool:
        """Read changes, and wait for it for a while, if this daemon leads.

        :return: whether they were read in time
        """
        done = threading.Event()
        if self.leading:
            self._awaited.append(done)
            self.wake()
            done.wait(_CATCH_UP_S)
        return done.is_set()

    def read_all(self, then: Callable[[], None]) -> None:
        """Read every database as a whole again, soon.

        :param then: called by the thread after it has written all of it
        """
        self._then = then
        self.wake()

    def _run(self) -> None:
        while not self._stopping.is_set():
            awaited, self._awaited = self._awaited, []
            try:
                options, self._next = self._next, None
                if options not in (None, self._options):
                    self._disconnect()
                    self._options = options
                    self._api = self._database(options.api_database)
                self._turn()
            except LeaseLost:
                self._lead(False)
            except errors.StoreUnavailable:
                # The engine's thread logs that the database is unreachable.
                LOG.debug('The mirror waits until the database is reachable')
                self._read_all_again()
            except Exception:
                LOG.exception('Hosts could not be mirrored')
                self._read_all_again()
            for done in awaited:
                done.set()
            self._pause(self._options.poll_interval)
            time.sleep(_SETTLE_S)
        self._lease.give_up()
        self._disconnect()

    def _disconnect(self) -> None:
        """Close all connections; cells get new readers at the next turn."""
        self._api.close()
        for reader in self._cells.values():
            reader.close()
        for database in self._queried.values():
            database.close()
        self._cells, self._queried = {}, {}

    def _turn(self) -> None:
        leading = self._lease.take()
        if leading != self.leading:
            self._lead(leading)
        if leading:
            start = time.perf_counter()
            then = self._then
            if then is not None:
                self._read_all_again()
            complete = self.poll()
            if complete and then is not None:
                if self._then is then:
                    self._then = None
                then()
            self._health.time('mirror', time.perf_counter() - start)
            if complete and not self._passed:
                self._on_pass()
                self._passed = True
                self._applier.on_new = self._on_new

    def _lead(self, leading: bool) -> None:
        LOG.info(
            'Hosts are mirrored by %s daemon',
            'this' if leading else 'another',
        )
        self._read_all_again()
        self._passed, self._applier.on_new = False, None
        if leading:
            self._on_lead()
        self.leading = leading

    def _read_all_again(self) -> None:
        self._fingerprints = []
        self._applier.forget()
        for reader in self._cells.values():
            reader.reset()

    def poll(self) -> bool:
        """Read changes once, and apply them.

        :return: whether the API database and any cell were read
        :raises StoreUnavailable: our own database does not answer
        """
        began = time.monotonic()
        api_answered = self._follow_api()
        reads = [
            (cell, reader, self._readers.submit(reader.read))
            for cell, reader in self._cells.items()
        ]
        answered = not (self._cells or self._lacks_cell)
        is_whole = api_answered and not self._lacks_cell
        for cell, reader, read in reads:
            cause = f'cell {cell.name}'
            try:
                changes = read.result()
            except Exception as fault:
                self._leave_out(cell, reader, cause, fault)
                is_whole = False
                continue
            answered = True
            self._health.recover(cause)
            touched = self._applier.apply(changes) if changes else ()
            if self._on_hosts is not None and touched:
                self._on_hosts(touched)
        if is_whole:
            self._current_at = began
        return api_answered and answered

    def _leave_out(
        self, cell: Cell, reader: CellReader, cause: str, fault: Exception
    ) -> None:
        """Mark the hosts of a cell as down until it can be read again."""
        if not isinstance(fault, sa.exc.SQLAlchemyError | OSError):
            LOG.error('Cell %s cannot be read', cell.name, exc_info=fault)
        self._health.degrade(
            cause,
            f'cell {cell.name} is left out, its database does not answer: '
            f'{first_line(driver_fault(fault))}',
            f'Cell {cell.name} is read again',
        )
        reader.reset()
        self._applier.mark_cell_down(cell.uuid)

    def _follow_api(self) -> bool:
        """Read changes of the API database.

        Where it does not answer, the last cells and aggregates stay.

        :return: whether it answered
        """
        try:
            with self._api.reading() as conn:
                cells = databases.cells(conn)
                fingerprints = databases.fingerprints(conn)
                changed = self._changed_tables(fingerprints)
                if changed or cells != [*self._cells]:
                    mappings = databases.host_mappings(conn)
                    flavors = databases.flavor_ids(conn)
                    rows = databases.aggregates(conn)
        except sa.exc.SQLAlchemyError as fault:
            self._health.degrade(
                _API,
                f'API database of the compute service unreachable: '
                f'{first_line(driver_fault(fault))}',
                'API database of the compute service reachable again',
            )
            return False
        self._health.recover(_API)
        if not changed and cells == [*self._cells]:
            return True
        self._use_cells(cells, mappings, flavors)
        aggregates, left_out = translated_aggregates(*rows)
        if left_out:
            self._health.degrade(
                'aggregates',
                f'{len(left_out)} left out: {left_out[0]}',
                'All aggregates are mirrored',
            )
        else:
            self._health.recover('aggregates')
        self._applier.put_aggregates(aggregates)
        self._fingerprints = fingerprints
        return True

    def _changed_tables(self, fingerprints: Sequence[Row[Any]]) -> bool:
        """Whether tables changed, or may have changed, since the last read.

        Times are in whole seconds: a second change within a second shows the
        same fingerprint.
        """
        now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
        fresh = now - datetime.timedelta(seconds=OVERLAP_S)
        return self._fingerprints != fingerprints or any(
            fingerprint.newest is not None and fingerprint.newest >= fresh
            for fingerprint in fingerprints
        )

    def _use_cells(
        self,
        cells: Sequence[Cell],
        mappings: Mapping[str, int],
        flavors: Mapping[int, str],
    ) -> None:
        """Read these cells from now on, and remove the hosts of others."""
        readers = {}
        for cell in cells:
            reader = self._cells.get(cell) or self._reader(cell)
            if reader is None:
                continue
            readers[cell] = reader
            mine = frozenset(h for h, number in mappings.items()
                             if number == cell.id)  # fmt: skip
            if reader.hosts != mine:
                reader.reset()
            reader.hosts, reader.flavors = mine, flavors
        for cell, reader in self._cells.items():
            if readers.get(cell) is not reader:
                reader.close()
        self._cells = readers
        self._lacks_cell = len(readers) < len(cells)
        self._applier.remove_other_cells([cell.uuid for cell in cells])

    def _reader(self, cell: Cell) -> CellReader | None:
        """Return a reader of a cell; None where its URL cannot be used."""
        options = self._options
        base = options.cell_database or options.api_database
        try:
            database = self._database(self.cell_url(cell.url, base))
        except errors.ConfigurationError as error:
            self._health.degrade(
                f'cell {cell.name}', f'cell {cell.name} is left out: {error}'
            )
            self._applier.mark_cell_down(cell.uuid)
            return None
        return CellReader(cell, database, options)

    def _database(self, url: str) -> ReadOnlyDatabase:
        options = self._options
        return ReadOnlyDatabase(
            url, options.connect_timeout, options.statement_timeout
        )


# The longest wait for capacity from placement once the hosts are there, in
# seconds.
PLACEMENT_WAIT_S = 30.0


class FirstPass:
    """The progress of the first pass, recorded in the store for all daemons.

    :param with_placement: whether capacity comes from the placement service
    """

    def __init__(self, store: Store, with_placement: bool) -> None:
        self._store = store
        self._with_placement = with_placement
        # Monotonic time at which the hosts were first seen in the store.
        self._hosts_seen_at: float | None = None

    def record(self, progress: Progress) -> None:
        """Record the progress of a pass, for good.

        :raises StoreUnavailable: the database does not answer
        """
        self._store.write(
            lambda writer: leases.record_mirror_progress(writer, progress)
        )

    def missing(self) -> str:
        """Return what has to be read before requests; empty: nothing.

        The wait for the placement service ends after ``PLACEMENT_WAIT_S``.

        :raises StoreUnavailable: the database does not answer
        """
        with self._store.reading() as conn:
            progress = leases.mirror_progress(conn)
        if progress == Progress.NOTHING:
            return "the compute service's databases"
        if not self._with_placement or progress == Progress.CAPACITY:
            return ''
        if self._hosts_seen_at is None:
            self._hosts_seen_at = time.monotonic()
        waited = time.monotonic() - self._hosts_seen_at
        return '' if waited > PLACEMENT_WAIT_S else 'resource providers'
