"""The state of a cell's compute services, of which each reports every few
seconds.

All are read only where some were added or removed; else those that are
disabled or down, which are few. A :class:`ServiceStates` belongs to whichever
thread reads the cell at the time.
"""

from __future__ import annotations

import datetime

from sqlalchemy.engine import Connection

from scheduler_service.compute.follower import queries, translation
from scheduler_service.compute.follower.queries import Fingerprint
from scheduler_service.compute.follower.translation import ServiceState

_UP = ServiceState(disabled=False, reason=None, up=True)


class ServiceStates:
    """Reads the states of services.

    :param down_time: seconds without a sign of life, after which a service
        is down
    """

    def __init__(self, down_time: float) -> None:
        self._down_time = down_time
        self._fingerprint: Fingerprint | None = None
        self._hosts: frozenset[str] = frozenset()

    def reset(self) -> None:
        """Read all the next time."""
        self._fingerprint = None

    def read(
        self, conn: Connection, now: datetime.datetime
    ) -> dict[str, ServiceState]:
        """Return the state of each service, by host.

        :param now: in UTC, without a time zone
        """
        found = queries.services_fingerprint(conn)
        fresh = (
            now - datetime.timedelta(seconds=self._down_time),
            now + datetime.timedelta(seconds=self._down_time),
        )
        if found == self._fingerprint:
            rows = queries.services(conn, fresh)
        else:
            rows = queries.services(conn)
            self._hosts = frozenset(rows)
            self._fingerprint = found
        states = dict.fromkeys(self._hosts, _UP)
        states.update(
            (host, translation.service_state(row, now, self._down_time))
            for host, row in rows.items()
            if host in self._hosts
        )
        return states
