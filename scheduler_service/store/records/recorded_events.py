"""What happened to a host or an instance, read from recordings.

For a finder: each daemon records what it did itself, and what it read of
others, so that a claim of one is also seen by the others.
"""

from __future__ import annotations

import itertools
import math
import operator
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.columns.changes import Release, Update
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.engine.journal import Changed, PodPlaced
from scheduler_service.model.inventory import dashed
from scheduler_service.store.records import daemons, playback
from scheduler_service.store.records.playback import Playback, RecordedEntry
from scheduler_service.store.records.recording_format import RecordedDecision


class Event(NamedTuple):
    """Something that a daemon did, or saw.

    :ivar at: when it was stored, seconds since the epoch
    :ivar daemon: its name
    :ivar event: selected (the claim came to nothing, or is seen later),
        claimed, refused, released and other changes of claims, seen, gone,
        reported, added, changed, enabled, disabled or removed; gap: from here
        on something is not recorded; command: of an operator
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
) -> list[Event]:
    """Return the events of a host or an instance, and the gaps, by time.

    Those of a run of a daemon are in their order, whatever its clock did.

    :param since: seconds since the epoch
    """
    told = [(event.at, event) for event in _commands(conn, subject, since)]
    runs = playback.runs(conn)
    told += (_gap(gap, since) for gap in playback.missing(conn, runs))
    for name in {run.daemon for run in runs}:
        own = [run for run in runs if run.daemon == name]
        told += _of_daemon(conn, subject, own, runs, since)
    told = [each for each in told if each[0] >= since]
    return [event for _, event in sorted(told, key=operator.itemgetter(0))]


def _gap(gap: playback.Gap, since: float) -> tuple[float, Event]:
    """Return a gap with its place among the events."""
    last = math.inf if gap.ended_at is None else gap.ended_at
    event = Event(
        'gap', detail=gap.sentence(), at=gap.began_at, daemon=gap.daemon
    )
    return min(max(gap.began_at, since), last), event


def _of_daemon(
    conn: Connection,
    subject: Subject,
    own: Sequence[playback.Run],
    runs: Sequence[playback.Run],
    since: float,
) -> Iterator[tuple[float, Event]]:
    """Yield the events of a daemon's runs with their places among all."""
    player, finder, place = Playback(conn), _EventFinder(subject), 0.0
    every = [(run, stretch) for run in own for stretch in run.stretches]
    after = [stretch for _, stretch in every[1:]]
    for (run, stretch), later in itertools.zip_longest(every, after):
        # What comes before a checkpoint that it does not lead to is compared.
        is_compared = later and not later.follows and later.ended_at >= since
        if stretch.ended_at < since and not is_compared:
            continue
        place = 0.0 if stretch is run.stretches[0] else place
        at = stretch.began_at
        try:
            for recorded in player.play(*stretch[:3]):
                at = recorded.block.stored_at
                place = max(place, at)
                for event in finder.events(recorded):
                    if at >= since and subject.concerns(event):
                        yield place, event._replace(at=at, daemon=run.daemon)
        except errors.NotRecorded as fault:
            _, until = playback.next_checkpoint(runs, run.daemon, stretch)
            gap = playback.Gap(run.daemon, at, until, fault.args[0])
            yield _gap(gap, since)


def _commands(
    conn: Connection, subject: Subject, since: float
) -> Iterator[Event]:
    for row in daemons.since(conn, since):
        if row['event'] == daemons.COMMAND:
            line, at = row['detail'], row['begun_at']
            words = (word.rpartition('=')[2] for word in shlex.split(line))
            if not {*subject}.isdisjoint(map(dashed, words)):
                user = row['who']
                yield Event('command', *subject, None, line, at, '', user)


class _EventFinder:
    """Says what changes in the tables of a daemon."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        # Instance -> the request that had its claim released.
        self._causes: dict[str, str | None] = {}

    def events(self, recorded: RecordedEntry) -> Iterator[Event]:
        """Yield what an entry says; nothing without the table before it."""
        if recorded.overlay is None:
            return
        entry, table = recorded.entry, recorded.overlay.table
        yield from _ended(recorded, table)
        if isinstance(entry, HostTable):
            for uuid in self._uuids(table) | self._uuids(entry):
                both = (each.instances.get(uuid) for each in (table, entry))
                yield from _moved(uuid, *both)
        elif isinstance(entry, Update):
            yield from self._updated(entry, table)
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

    def _uuids(self, table: HostTable) -> set[str]:
        """Return which instances may be of the subject."""
        if self._subject.instance is not None:
            return {self._subject.instance}
        host = self._subject.host
        return {each.uuid for each in table.instances if host in each.hosts}

    def _updated(self, entry: Update, table: HostTable) -> Iterator[Event]:
        for placed in entry.instances:
            before = table.instances.get(placed.uuid)
            yield from _moved(placed.uuid, before, placed)
        for uuid in entry.instances_gone:
            yield from _moved(uuid, table.instances.get(uuid), None)
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


def _ended(recorded: RecordedEntry, table: HostTable) -> Iterator[Event]:
    """Yield what is refused by an entry, claimed, or comes to nothing."""
    entry = recorded.entry
    if isinstance(entry, RecordedDecision) and entry.error:
        times = f', {entry.times} times' if entry.times > 1 else ''
        for uuid in entry.uuids:
            detail = f'{entry.error}{times}'
            yield Event('refused', None, uuid, entry.request_id, detail)
    what = 'claimed' if recorded.is_claimed else 'selected'
    for ended, _ in recorded.ended:
        if isinstance(ended, PodPlaced):
            yield Event(what, table.host_at(ended.row), ended.uid)
        elif not ended.error:
            for uuid, row in ended.placed:
                host = table.host_at(row)
                yield Event(what, host, uuid, ended.request_id)


def _moved(
    uuid: str, before: PlacedInstance | None, after: PlacedInstance | None
) -> Iterator[Event]:
    """Yield which hosts an instance is seen on, and from which it is gone.

    One that moves is on both.
    """
    old, new = (each.hosts if each else () for each in (before, after))
    yield from (Event('seen', host, uuid) for host in new if host not in old)
    yield from (Event('gone', host, uuid) for host in old if host not in new)


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
    changes = []
    for name, values in entry.numbers.items():
        before = table.numbers[name][row].item()
        if before != values[at] and before == before:
            changes.append(f'{name} {before:g} -> {values[at]:g}')
    for name in entry.used.keys() & table.resources.keys():
        before = table.resources[name].used[row].item()
        if entry.used[name][at] not in (before, -1):
            changes.append(f'{name} used {before} -> {entry.used[name][at]}')
    return ', '.join(sorted(changes))
