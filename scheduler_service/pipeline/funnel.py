"""How many hosts each filter was given and how many it left."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(slots=True)
class Funnel:
    """Hosts at the start, and (filter, before, after) in order."""

    hosts: int
    counts: list[tuple[str, int, int]] = dataclasses.field(
        default_factory=list
    )
    _told: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON can hold them; not to be changed.

        It is asked for once they are all there.
        """
        if self._told is None:
            self._told = self._tell()
        return self._told

    def _tell(self) -> dict[str, Any]:
        return {
            'hosts': self.hosts,
            'funnel': [
                {'filter': name, 'start': start, 'end': end}
                for name, start, end in self.counts
            ],
        }
