"""How many hosts each filter was given and how many it left."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


@dataclasses.dataclass(slots=True)
class Funnel:
    """Hosts at the start, and (filter, before, after) in order."""

    hosts: int
    counts: list[tuple[str, int, int]] = dataclasses.field(
        default_factory=list
    )
    _told: msgspec.Raw | None = None

    def told(self) -> dict[str, Any]:
        """Return what :meth:`to_dict` does, with the counts as JSON.

        It is asked for once they are all there.
        """
        if self._told is None:
            self._told = msgspec.Raw(_encode(self.to_dict()['funnel']))
        return {'hosts': self.hosts, 'funnel': self._told}

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON can hold them."""
        return {
            'hosts': self.hosts,
            'funnel': [
                {'filter': name, 'start': start, 'end': end}
                for name, start, end in self.counts
            ],
        }
