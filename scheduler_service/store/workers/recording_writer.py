"""Makes blocks of what the engine's journal has, and stores them.

It belongs to the thread of the recorder of decisions, which stores both.
"""

from __future__ import annotations

import collections
import logging
import math
import secrets
import time
from collections.abc import Callable

from scheduler_service.engine.health import Health
from scheduler_service.engine.journal import Checkpoint, Journal
from scheduler_service.store.connection import Writer
from scheduler_service.store.records import recording_format, recordings

LOG = logging.getLogger(__name__)
# What may wait for the database, in bytes, and what a transaction stores.
_MOST_WAITING = 64 * 2**20
_PER_TRANSACTION = 8 * 2**20
# In a block: a few kilobytes each at most.
_MOST_ENTRIES = 2000
# A checkpoint follows after this many seconds with an entry, or where the
# blocks since the last one are twice as large as it, and this large at least.
_CHECKPOINT_S = 3600.0
_LEAST_BYTES = 2**22
# After a fault it is tried again in this many seconds.
_AGAIN_S = 60.0


class RecordingWriter:
    """Makes blocks and stores them.

    :param origin: returns the daemon's name, its release, and the fingerprint
        of its configuration
    :param health: counts entries that are dropped
    :ivar run: a number that no other run of a daemon has
    :ivar keep_s: after so many seconds what is stored is deleted; a checkpoint
        follows after half of them, whether or not entries come
    """

    def __init__(
        self,
        journal: Journal,
        origin: Callable[[], tuple[str, str, str]],
        health: Health,
    ) -> None:
        self.run = secrets.randbits(62)
        self._journal, self._origin, self._health = journal, origin, health
        self._waiting = collections.deque[recordings.NewBlock]()
        self._bytes = 0
        # Whether blocks may be stored that wait still.
        self._unsure = False
        # Of the newest block, and of the last one that begins a checkpoint.
        self._number = self._checkpoint_at = 0
        self.keep_s = math.inf
        # Of requests, stored once in a stretch.
        self._part_places: recording_format.PartPlaces = {}
        # Whether entries before are missing, so that a checkpoint has to come.
        self._lost = True
        self._began_at, self._checkpoint_bytes, self._since = 0.0, 0, 0
        self._failed_at = -_AGAIN_S
        self._is_stopping = False

    def stop(self) -> None:
        """Have what is gathered next be the end of the run."""
        self._is_stopping = True

    def gather(self) -> None:
        """Make blocks of what the journal has."""
        entries = iter(self._journal.take())
        packer = self._packer()
        try:
            for entry in entries:
                if isinstance(entry, Checkpoint):
                    self._close(packer)
                    self._checkpoint(entry)
                    packer = self._packer()
                elif self._lost:
                    self._drop(1)
                else:
                    packer.add(entry)
                    if len(packer) == _MOST_ENTRIES:
                        self._close(packer)
                        packer = self._packer()
            self._close(packer)
            if self._is_stopping and not self._lost:
                self._append(self._packer().packed(), recordings.ENDS)
                self._lost = True
        except Exception:
            LOG.exception('What a daemon saw could not be recorded')
            self._lost, self._failed_at = True, time.monotonic()
            self._drop(len(packer) + len([entry, *entries]))
        self._ask_for_checkpoint()

    def _packer(self) -> recording_format.Packer:
        number = self._number + 1
        return recording_format.Packer(
            self._origin(), number, self._part_places
        )

    def _checkpoint(self, made: Checkpoint) -> None:
        if self._bytes >= _MOST_WAITING:
            # What follows is of another table.
            self._lost = True
            return
        self._part_places.clear()
        self._checkpoint_at = self._number + 1
        begins = recordings.FOLLOWS if made.follows else recordings.ANEW
        if self._lost:
            begins = recordings.LOST
        before = self._bytes
        for data in recording_format.checkpoint_blocks(
            made.table, self._origin()
        ):
            self._append(data, begins)
            begins = recordings.NO
        self._lost = False
        self._checkpoint_bytes, self._since = self._bytes - before, 0
        self._began_at = time.monotonic()

    def _close(self, packer: recording_format.Packer) -> None:
        """Make a block of entries, if there are any."""
        if not len(packer):
            return
        data = packer.packed()
        if self._bytes + len(data) > _MOST_WAITING:
            self._drop(len(packer))
            self._lost = True
            return
        self._since += len(data)
        self._append(data, recordings.NO)
        for made, index in packer.decided:
            made.place = self.run, self._number, index

    def _drop(self, count: int) -> None:
        self._health.count('history_entries_dropped', by=count)

    def _append(self, data: bytes, begins: int) -> None:
        self._number += 1
        self._bytes += len(data)
        self._waiting.append(recordings.NewBlock(self._number, begins, data))

    def _ask_for_checkpoint(self) -> None:
        largest = max(2 * self._checkpoint_bytes, _LEAST_BYTES)
        now = time.monotonic()
        if self._lost:
            is_due = (
                self._bytes < _MOST_WAITING // 2
                and now - self._failed_at > _AGAIN_S
            )
        else:
            age = now - self._began_at
            is_old = age > _CHECKPOINT_S
            is_due = self._since > (0 if is_old else largest)
            is_due = is_due or age > self.keep_s / 2
        if is_due:
            self._journal.due = True

    def __bool__(self) -> bool:
        """Whether blocks wait."""
        return bool(self._waiting)

    @property
    def fits_transaction(self) -> bool:
        """Whether :meth:`store` stores all that waits."""
        return self._bytes <= _PER_TRANSACTION

    def store(self, writer: Writer) -> int:
        """Store the oldest blocks; return how many.

        They are kept until :meth:`stored`.
        """
        some, size = [], 0
        for block in self._waiting:
            some.append(block)
            size += len(block.data)
            if size > _PER_TRANSACTION:
                break
        recordings.insert(writer.conn, self.run, some, self._unsure)
        # Where it was deleted, as the database's clock stepped, nothing can be
        # read that follows.
        at = self._checkpoint_at
        is_later = bool(some) and some[-1].number > at
        if is_later and not recordings.is_stored(writer.conn, self.run, at):
            self._journal.due = True
        self._unsure = True
        return len(some)

    def stored(self, count: int) -> None:
        """Let go of the oldest blocks, which are stored."""
        self._unsure = False
        for _ in range(count):
            self._bytes -= len(self._waiting.popleft().data)
