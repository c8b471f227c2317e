"""Which instance is where: an index that is cheap to copy and to extend."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

_MERGE_AT = 2048


class PlacedInstance(NamedTuple):
    """An instance on a host, as filters and weighers see it.

    ``image`` holds the (property, value) pairs of its image as text.
    ``claimed`` is true where a claim of this service holds the place;
    ``bound_for`` is the service host that the instance moves to, or empty.
    """

    uuid: str
    host: str
    node: str
    project_id: str | None = None
    flavorid: str | None = None
    image: frozenset[tuple[str, str]] = frozenset()
    task_state: str | None = None
    claimed: bool = False
    bound_for: str = ''

    @property
    def hosts(self) -> tuple[str, ...]:
        """Service hosts that have the instance, or will."""
        if self.bound_for not in ('', self.host):
            return self.host, self.bound_for
        return (self.host,)


class InstanceIndex:
    """Instances by uuid and by service host.

    A change makes a new index that shares the large base with the old one
    and copies only the small delta, so readers keep what they hold; ``put``
    alone changes the index itself. Service host alone is the key: two nodes
    of one host see the same instances.
    """

    __slots__ = ('_base', '_base_by_host', '_delta', '_delta_by_host')

    def __init__(
        self,
        base: Mapping[str, PlacedInstance],
        delta: Mapping[str, PlacedInstance | None] | None = None,
    ) -> None:
        self._base: Mapping[str, PlacedInstance] = base
        self._delta: dict[str, PlacedInstance | None] = dict(delta or {})
        self._base_by_host: dict[str, set[str]] | None = None
        # Uuids by every host that the delta ever put them on.
        self._delta_by_host: dict[str, set[str]] | None = None

    @classmethod
    def of(cls, placed: Iterable[PlacedInstance]) -> InstanceIndex:
        """Build an index from scratch."""
        return cls({item.uuid: item for item in placed})

    def put(
        self, uuid: str, placed: PlacedInstance | None
    ) -> PlacedInstance | None:
        """Put an instance somewhere, or nowhere, in this very index.

        :return: where it was; None: it was not in the index
        """
        delta, base = self._delta, self._base
        before = delta[uuid] if uuid in delta else base.get(uuid)
        if placed is None and uuid not in self._base:
            self._delta.pop(uuid, None)
        else:
            self._delta[uuid] = placed
        if placed is not None and self._delta_by_host is not None:
            self._delta_by_host.setdefault(placed.host, set()).add(uuid)
        if len(self._delta) > max(_MERGE_AT, len(self._base) // 16):
            self._base = self._merged(self._delta)
            self._delta = {}
            self._base_by_host = self._delta_by_host = None
        return before

    def is_same(self, other: InstanceIndex) -> bool:
        """Whether both have the same instances, whatever is merged."""
        return self._base is other._base and self._delta == other._delta

    def get(self, uuid: str) -> PlacedInstance | None:
        """Return the place of an instance; None: it is not in the index."""
        if uuid in self._delta:
            return self._delta[uuid]
        return self._base.get(uuid)

    def among(self, uuids: Iterable[str]) -> dict[str, PlacedInstance]:
        """Return the places of those instances that are in the index."""
        base, delta = self._base, self._delta
        places = {}
        for uuid in uuids:
            placed = delta[uuid] if uuid in delta else base.get(uuid)
            if placed is not None:
                places[uuid] = placed
        return places

    def __len__(self) -> int:
        gone = sum(
            (uuid in self._base) if item is None else -(uuid not in self._base)
            for uuid, item in self._delta.items()
        )
        return len(self._base) - gone

    def __iter__(self) -> Iterator[PlacedInstance]:
        for uuid, item in self._base.items():
            if uuid not in self._delta:
                yield item
        for changed in self._delta.values():
            if changed is not None:
                yield changed

    def on_host(self, host: str) -> list[PlacedInstance]:
        """Return the instances on a service host, in no useful order."""
        if self._base_by_host is None:
            self._base_by_host = _by_host(self._base.values())
        if self._delta_by_host is None:
            self._delta_by_host = _by_host(self._delta.values())
        uuids = self._base_by_host.get(host, set())
        uuids = uuids | self._delta_by_host.get(host, set())
        instances = (self.get(uuid) for uuid in uuids)
        return [
            instance
            for instance in instances
            if instance is not None and instance.host == host
        ]

    def changed(
        self, placed: Iterable[PlacedInstance], gone: Iterable[str] = ()
    ) -> InstanceIndex:
        """Return an index with some instances put elsewhere or removed."""
        # Read the delta before the base: ``put`` may merge them meanwhile on
        # its own thread, and an instance in both does no harm.
        delta = dict(self._delta)
        delta.update((item.uuid, item) for item in placed)
        delta.update(dict.fromkeys(gone))
        if len(delta) > max(_MERGE_AT, len(self._base) // 16):
            return InstanceIndex(self._merged(delta))
        index = InstanceIndex(self._base, delta)
        index._base_by_host = self._base_by_host
        return index

    def _merged(
        self, delta: Mapping[str, PlacedInstance | None]
    ) -> Mapping[str, PlacedInstance]:
        """Return the base with a delta in it, as a mapping of its own."""
        merged = dict(self._base)
        for uuid, item in delta.items():
            if item is None:
                merged.pop(uuid, None)
            else:
                merged[uuid] = item
        return merged


def _by_host(
    placed: Iterable[PlacedInstance | None],
) -> dict[str, set[str]]:
    """Return the uuids of instances by service host."""
    by_host: dict[str, set[str]] = {}
    for instance in placed:
        if instance is not None:
            by_host.setdefault(instance.host, set()).add(instance.uuid)
    return by_host
