"""What was read of all providers before their hosts were there.

The first time, the databases and the placement service are read side by side.
Hosts that are new are then written once, with their capacity. The thread that
follows the providers puts it here, that of the mirror uses it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from scheduler_service.compute.follower import provider_reads
from scheduler_service.compute.follower.provider_reads import AllProviders
from scheduler_service.compute.placement.client import Provider
from scheduler_service.model import HostReport

# What was read before the hosts were there is used for so long, in seconds.
_VALID_S = 30.0
# The first hosts wait so long for it, in seconds: shorter than a lease.
_WAIT_S = 2.0


class EarlyProviders:
    """Holds what was read until the hosts of the first pass are there."""

    def __init__(self) -> None:
        self._every: AllProviders | None = None
        self._there = threading.Event()
        # Providers of hosts that were written with them, by uuid.
        self._written: dict[str, Provider] = {}

    def put(self, every: AllProviders) -> None:
        """Keep what was read."""
        self._every = every
        self._there.set()

    def take(self) -> AllProviders | None:
        """Return what is kept, unless it is too old, and keep it no longer."""
        every, self._every = self._every, None
        # Nobody waits for it any more.
        self._there.set()
        return every if _is_valid(every) else None

    def complete(self, reports: Sequence[HostReport]) -> list[HostReport]:
        """Return reports of hosts that are new, with their capacity."""
        if not self._there.wait(_WAIT_S):
            self._there.set()
        every = self._every
        found = every.found if every and _is_valid(every) else {}
        return [self._completed(one, found) for one in reports]

    def _completed(
        self, report: HostReport, found: Mapping[str, Provider]
    ) -> HostReport:
        uuid = report.changes.get('uuid', '')
        provider = found.get(uuid)
        if provider is None:
            # It may have been written with one, in vain.
            self._written.pop(uuid, None)
            return report
        self._written[uuid] = provider
        return provider_reads.report(report, provider, {}).over(report)

    def has_written(self, provider: Provider) -> bool:
        """Whether a host was written with this; asked once of each."""
        return self._written.pop(provider.uuid, None) is provider

    def forget(self) -> None:
        """Forget which were written."""
        self._written.clear()


def _is_valid(every: AllProviders | None) -> bool:
    return every is not None and time.monotonic() - every.read_at < _VALID_S
