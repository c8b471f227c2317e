"""What hosts and operators tell, gathered so that it is written in bulk."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from scheduler_service.model import Aggregate, HostReport, Instance
from scheduler_service.store.connection import Writer
from scheduler_service.store.writing import (
    admin,
    aggregates,
    instance_reports,
)


@dataclasses.dataclass(slots=True, eq=False)
class Event:
    """Something told, and the future that is done when it is kept."""

    future: Future[Any] = dataclasses.field(default_factory=Future)

    def write(self, writer: Writer) -> Any:
        """Keep it; return what is answered."""


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class InstancesSeen(Event):
    """Instances that hosts have now, each with its host."""

    instances: list[Instance]

    def write(self, writer: Writer) -> int:
        """Return how many changed."""
        return instance_reports.put(writer, self.instances)


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class InstancesGone(Event):
    """Instances that a host has not any more."""

    host: str
    uuids: list[str]

    def write(self, writer: Writer) -> list[str]:
        """Return those that changed."""
        return instance_reports.remove(writer, {self.host: self.uuids})


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class InstancesSynced(Event):
    """All instances that a host has."""

    host: str
    uuids: list[str]

    def write(self, writer: Writer) -> list[str]:
        """Return those that changed."""
        return instance_reports.sync(writer, self.host, self.uuids)


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class AggregatesPut(Event):
    """Aggregates as they are now."""

    aggregates: list[Aggregate]

    def write(self, writer: Writer) -> int:
        """Return how many changed."""
        return admin.put_aggregates(writer, self.aggregates)


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class AggregateGone(Event):
    """An aggregate that is no more."""

    id: int

    def write(self, writer: Writer) -> int:
        """Return how many were removed."""
        return aggregates.remove(writer, [self.id])


class Gathered:
    """What was told since the last time it was written.

    Reports of one host are one; the newest figure of each counts.
    """

    def __init__(self) -> None:
        self.reports: dict[tuple[str, str], HostReport] = {}
        self.beats: set[str] = set()
        self.events: list[Event] = []

    def __bool__(self) -> bool:
        return bool(self.reports or self.beats or self.events)

    def __len__(self) -> int:
        return len(self.reports) + len(self.beats) + len(self.events)

    def add_reports(self, reports: Sequence[HostReport]) -> None:
        """Add reports; whoever reports lives."""
        for one in reports:
            key = one.host, one.node
            self.reports[key] = one.over(self.reports.get(key))
            self.beats.add(one.host)

    def merge(self, newer: Gathered) -> None:
        """Add what was told after this."""
        for key, one in newer.reports.items():
            self.reports[key] = one.over(self.reports.get(key))
        self.beats |= newer.beats
        self.events += newer.events

    def runs(self) -> Iterator[list[Event]]:
        """Yield events of one kind that followed each other, in order.

        What hosts have now can be written together; anything else is not
        so frequent that it would pay.
        """
        run: list[Event] = []
        for event in self.events:
            joins = isinstance(event, InstancesSeen)
            if run and not (joins and isinstance(run[-1], InstancesSeen)):
                yield run
                run = []
            run.append(event)
        if run:
            yield run
