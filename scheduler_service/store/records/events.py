"""What happened to a host or an instance, read from the history.

For a reader: each daemon records what it did itself, and what it read of
others, so that a claim of one is also seen by the others.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.columns.changes import Release, Update
from scheduler_service.engine.journal import Changed, Ended, PodPlaced
from scheduler_service.model.inventory import dashed
from scheduler_service.store import schema
from scheduler_service.store.records import event_log, history
from scheduler_service.store.records.history import Asked, Block, Entry


class Event(NamedTuple):
    """Something that a daemon did, or saw.

    :ivar at: when it was stored, seconds since the epoch
    :ivar daemon: its name
    :ivar event: selected (the claim came to nothing, or is seen later),
        claimed, refused, released and other changes of claims, seen, gone,
        reported, added, changed, enabled, disabled or removed; gap: the
        history cannot be read from here on; command: of an operator
    :ivar user: of the operating system, whose command it is
    """

    event: str
    host: str | None = None
    instance: str | None = None
    request_id: str | None = None
    detail: str = ''
    at: float = 0.0
    daemon: str = ''
    user: str = ''


class Subject(NamedTuple):
    """A host or an instance; what is None matches nothing by itself."""

    host: str | None
    instance: str | None

    def concerns(self, event: Event) -> bool:
        """Whether an event is of the subject, or a gap."""
        return event.event == 'gap' or (
            event.host == self.host
            if self.host is not None
            else event.instance == self.instance
        )


def of_subject(
    conn: Connection, subject: Subject, since: float
) -> Iterator[Event]:
    """Yield the events of a host or an instance, by daemon, in their order.

    The commands that name it come first.

    :param since: seconds since the epoch
    """
    yield from _commands(conn, subject, since)
    for stretch in history.stretches(conn):
        if stretch.ended_at < since:
            continue
        stored_at = times(conn, stretch)
        reader = _Reader(subject)
        number, daemon = stretch.first, ''
        try:
            for number, _, entry, block in history.entries(conn, *stretch[:3]):
                daemon = block.daemon
                for event in reader.read(entry, block):
                    if stored_at[number] >= since and subject.concerns(event):
                        yield event._replace(
                            at=stored_at[number], daemon=daemon
                        )
        except errors.NotRecorded as error:
            at = stored_at.get(number, stretch.began_at)
            yield Event('gap', detail=str(error.args[0]), at=at, daemon=daemon)


def _commands(
    conn: Connection, subject: Subject, since: float
) -> Iterator[Event]:
    for row in event_log.since(conn, since):
        if row['event'] == event_log.COMMAND:
            line, at = row['detail'], row['begun_at']
            words = (word.rpartition('=')[2] for word in shlex.split(line))
            if not {*subject}.isdisjoint(map(dashed, words)):
                user = row['who']
                yield Event('command', *subject, None, line, at, '', user)


def times(conn: Connection, stretch: history.Stretch) -> dict[int, float]:
    """Return when each block of a stretch was stored."""
    columns = schema.history.c
    query = sa.select(columns.number, columns.created_at).where(
        columns.run == stretch.run,
        columns.number.between(stretch.first, stretch.last),
    )
    return {row.number: row.created_at for row in conn.execute(query)}


class _Reader:
    """Makes the table of a stretch again, and says what changes in it."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._replay = history.Replay()
        # Assumed, and not claimed or forgotten yet.
        self._pending: list[Event] = []
        # Instance -> the request that had its claim released.
        self._causes: dict[str, str | None] = {}

    def read(self, entry: Entry, block: Block) -> list[Event]:
        """Apply an entry; return what it says."""
        overlay = self._replay.overlay
        events: list[Event] = []
        if overlay is not None:
            events = [*self._events(entry, block, overlay.table)]
        self._replay.apply(entry, block)
        return events

    def _events(
        self, entry: Entry, block: Block, table: HostTable
    ) -> Iterator[Event]:
        if isinstance(entry, Asked):
            yield from self._asked(entry, block, table)
        elif isinstance(entry, PodPlaced):
            host = table.host_at(entry.row)
            self._pending.append(Event('claimed', host, entry.uid))
        elif isinstance(entry, Ended):
            yield from self._ended(entry.claimed)
        elif isinstance(entry, Changed):
            self._causes |= dict.fromkeys(entry.instances, entry.request_id)
            for uuid in entry.instances:
                placed = table.instances.get(uuid)
                where = placed.host if placed else None
                yield Event(entry.change, where, uuid, entry.request_id)
        elif isinstance(entry, Release):
            for uuid, name, *_ in entry.claims:
                if name is not None:
                    cause = self._causes.pop(uuid, None)
                    yield Event('released', name, uuid, cause)
        elif isinstance(entry, Update):
            yield from self._updated(entry, table)

    def _asked(
        self, entry: Asked, block: Block, table: HostTable
    ) -> Iterator[Event]:
        request = history.request(entry, block)
        request_id = request.request_id
        if entry.error:
            times = f', {entry.times} times' if entry.times > 1 else ''
            for uuid in request.instance_uuids:
                detail = f'{entry.error}{times}'
                yield Event('refused', None, uuid, request_id, detail)
            return
        for at, row in zip(entry.order, entry.rows, strict=True):
            uuid = request.instance_uuids[at]
            self._pending.append(
                Event('claimed', table.host_at(row), uuid, request_id)
            )

    def _ended(self, claimed: int) -> Iterator[Event]:
        if claimed < 0:
            for event in self._pending:
                yield event._replace(event='selected')
            self._pending = []
            return
        yield from self._pending[:claimed]
        del self._pending[:claimed]

    def _updated(self, entry: Update, table: HostTable) -> Iterator[Event]:
        for placed in entry.instances:
            before = table.instances.get(placed.uuid)
            if before is None or before.host != placed.host:
                yield Event('seen', placed.host, placed.uuid)
        for uuid in entry.instances_gone:
            before = table.instances.get(uuid)
            if before is not None:
                yield Event('gone', before.host, uuid)
        if self._subject.host is not None:
            yield from self._of_host(entry, table, self._subject.host)

    def _of_host(
        self, entry: Update, table: HostTable, name: str
    ) -> Iterator[Event]:
        """Yield what an update says of the nodes of a host."""
        for number, host in entry.hosts:
            if host.host == name:
                event = _change(table, table.row_of_id(number), host)
                reason = host.disabled_reason if event == 'disabled' else None
                yield Event(event, name, detail=reason or '')
        for row in table.rows_of_host(name).tolist():
            number = table.ids.item(row)
            if number in entry.hosts_gone:
                yield Event('removed', name)
            elif number in entry.loaded:
                at = entry.loaded.index(number)
                if detail := _differences(entry, at, table, row):
                    yield Event('reported', name, detail=detail)


def _change(table: HostTable, row: int | None, host: Any) -> str:
    """Return what became of a host whose document changed."""
    if row is None:
        return 'added'
    enabled = host.status == 'enabled'
    if bool(table.numbers['enabled'][row]) != enabled:
        return 'enabled' if enabled else 'disabled'
    return 'changed'


def _differences(entry: Update, at: int, table: HostTable, row: int) -> str:
    """Return which figures of a host an update changes."""
    parts = []
    for name, values in entry.numbers.items():
        before = table.numbers[name][row].item()
        if before != values[at] and before == before:
            parts.append(f'{name} {before:g} -> {values[at]:g}')
    for name in entry.used.keys() & table.resources.keys():
        before = table.resources[name].used[row].item()
        if entry.used[name][at] not in (before, -1):
            parts.append(f'{name} used {before} -> {entry.used[name][at]}')
    return ', '.join(sorted(parts))
