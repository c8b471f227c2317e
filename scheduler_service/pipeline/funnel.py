"""How many hosts each filter was given and how many it left."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(slots=True)
class Funnel:
    """Counts of hosts on their way through the filters.

    :ivar hosts: how many there were at the start
    :ivar counts: (filter, hosts before, hosts after) in the filters' order
    """

    hosts: int
    counts: list[tuple[str, int, int]] = dataclasses.field(
        default_factory=list
    )

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON can hold them."""
        return {
            'hosts': self.hosts,
            'funnel': [
                {'filter': name, 'start': start, 'end': end}
                for name, start, end in self.counts
            ],
        }
