"""Whether this daemon is the one that writes for all.

A :class:`Lease` belongs to the mirror's thread.
"""

from __future__ import annotations

import time

from oslo_db import exception as db_exception

from scheduler_service.store.connection import Store
from scheduler_service.store.records import leases

# How long a lease is valid without being renewed, in seconds: a holder that
# died is replaced within this time and one poll.
VALID_S = 4.0
_RENEW_S = 1.0


class LeaseLost(Exception):
    """Another daemon writes now."""


class Lease:
    """A lease of the store.

    :param name: of the work
    :param holder: this daemon's name, which no other has
    """

    def __init__(self, store: Store, name: str, holder: str) -> None:
        self._store = store
        self._name = name
        self._holder = holder
        self._renewed_at = 0.0

    def take(self) -> bool:
        """Take the lease, or keep it; return whether this daemon has it.

        :raises StoreUnavailable: the database does not answer
        """
        start = time.monotonic()
        try:
            taken = self._store.write(
                lambda writer: leases.take(
                    writer, self._name, self._holder, VALID_S
                )
            )
        except db_exception.DBDuplicateEntry:
            return False
        if taken:
            self._renewed_at = start
        return bool(taken)

    def keep(self) -> None:
        """Renew the lease where that is due.

        :raises LeaseLost: another daemon has it
        """
        if time.monotonic() - self._renewed_at > _RENEW_S and not self.take():
            raise LeaseLost

    def give_up(self) -> None:
        """Let another daemon take it at once."""
        self._store.write(
            lambda writer: leases.give_up(writer, self._name, self._holder)
        )
