"""What hosts and operators report, and the buffer that it waits in.

An event is filled in by the thread that received it and written by the
thread of ``host_state_writer``; its future is how the two meet.
``ReportBuffer`` takes no lock: its owner does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from scheduler_service.engine.futures import ReplyFuture
from scheduler_service.model import Aggregate, HostReport, Instance
from scheduler_service.store.claims import lifecycle
from scheduler_service.store.connection import Writer
from scheduler_service.store.records.refused_reports import Refusals
from scheduler_service.store.writing import aggregates, instances


@dataclasses.dataclass(slots=True, eq=False)
class Event:
    """A change to be written.

    :ivar future: gets what :meth:`write` returns, once it is committed
    """

    future: ReplyFuture = dataclasses.field(default_factory=ReplyFuture)

    def write(self, writer: Writer) -> Any:
        """Write it; return what the reporter gets as its reply."""


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class UpdateInstances(Event):
    """Instances that hosts have now, each with its host."""

    instances: list[Instance]

    def write(self, writer: Writer) -> int:
        """Return how many changed."""
        return instances.report(writer, self.instances)


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class DeleteInstances(Event):
    """Instances that a host no longer has."""

    host: str
    uuids: list[str]

    def write(self, writer: Writer) -> list[str]:
        """Return those that changed."""
        return lifecycle.remove_from_host(
            writer, self.host, sorted(self.uuids)
        )


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class SyncInstances(Event):
    """All instances that a host has; it has no others."""

    host: str
    uuids: list[str]

    def write(self, writer: Writer) -> list[str]:
        """Return those that changed."""
        return instances.sync(writer, self.host, self.uuids)


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class UpdateAggregates(Event):
    """Aggregates to add, or to replace by id."""

    aggregates: list[Aggregate]

    def write(self, writer: Writer) -> int:
        """Return how many changed."""
        return aggregates.put(writer, self.aggregates)


@dataclasses.dataclass(slots=True, eq=False, kw_only=True)
class DeleteAggregate(Event):
    """An aggregate to remove."""

    id: int

    def write(self, writer: Writer) -> int:
        """Return how many were removed."""
        return aggregates.remove(writer, [self.id])


class ReportBuffer:
    """What was received and is not written yet.

    :ivar reports: (service host, node) -> its reports, merged into one: the
        newest value of each field
    :ivar refusals: service host -> its reports that were refused
    :ivar heartbeats: service hosts to mark as alive
    :ivar events: in the order they came
    """

    def __init__(self) -> None:
        self.reports: dict[tuple[str, str], HostReport] = {}
        self.refusals: dict[str, Refusals] = {}
        self.heartbeats: set[str] = set()
        self.events: list[Event] = []

    def __bool__(self) -> bool:
        return bool(len(self))

    def __len__(self) -> int:
        waiting = len(self.reports) + len(self.refusals)
        return waiting + len(self.heartbeats) + len(self.events)

    def add_reports(self, reports: Sequence[HostReport]) -> None:
        """Add reports; a host that reports is alive."""
        for report in reports:
            key = report.host, report.node
            self.reports[key] = report.over(self.reports.get(key))
            self.heartbeats.add(report.host)

    def add_refusals(self, host: str, refusals: Refusals) -> None:
        """Add reports of a service host that were refused."""
        self.refusals[host] = refusals.after(self.refusals.get(host))

    def merge(self, newer: ReportBuffer) -> None:
        """Add what was received after all that is in here."""
        for host, refusals in newer.refusals.items():
            self.add_refusals(host, refusals)
        for key, report in newer.reports.items():
            self.reports[key] = report.over(self.reports.get(key))
        self.heartbeats |= newer.heartbeats
        self.events += newer.events

    def event_batches(self) -> Iterator[list[Event]]:
        """Yield the events in order, those that can be written together.

        Consecutive updates of instances are one batch. Other events are too
        rare for that to pay, and each is a batch of its own.
        """
        batch: list[Event] = []
        for event in self.events:
            joins = (
                bool(batch)
                and isinstance(event, UpdateInstances)
                and isinstance(batch[-1], UpdateInstances)
            )
            if batch and not joins:
                yield batch
                batch = []
            batch.append(event)
        if batch:
            yield batch
