"""Whether the store has what one complete pass of a mirror brings.

Until then it has only some of the hosts, or none, and no request may be
decided on them. It does not matter which daemon made the pass, or when. A
:class:`FirstPass` may be used by any thread.
"""

from __future__ import annotations

import time

from scheduler_service.store.connection import Store
from scheduler_service.store.records import mirror_progress
from scheduler_service.store.records.mirror_progress import Progress

# For how long capacity from placement is waited for once the hosts are
# there, in seconds.
PLACEMENT_WAIT_S = 30.0


class FirstPass:
    """The progress of the first pass, recorded in the store for all daemons.

    :param with_placement: whether capacity comes from the placement service
    """

    def __init__(self, store: Store, with_placement: bool) -> None:
        self._store = store
        self._with_placement = with_placement
        # Monotonic time at which the hosts were first seen to be there.
        self._hosts_seen_at: float | None = None

    def record(self, progress: Progress) -> None:
        """Record how far a pass came, for good.

        :raises StoreUnavailable: the database does not answer
        """
        self._store.write(
            lambda writer: mirror_progress.record(writer, progress)
        )

    def missing(self) -> str:
        """Return what has to be read before requests; empty: nothing.

        A placement service that does not answer is waited for only a while.

        :raises StoreUnavailable: the database does not answer
        """
        with self._store.reading() as conn:
            progress = mirror_progress.read(conn)
        if progress == Progress.NOTHING:
            return "the compute service's databases"
        if not self._with_placement or progress == Progress.CAPACITY:
            return ''
        if self._hosts_seen_at is None:
            self._hosts_seen_at = time.monotonic()
        waited = time.monotonic() - self._hosts_seen_at
        return '' if waited > PLACEMENT_WAIT_S else 'resource providers'
