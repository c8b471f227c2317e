"""Bring an inventory document into the store, and back out.

One transaction, and only what differs is written: the same document again
changes nothing. What claims hold is never touched; a document's use of a
host counts the claims of the instances it lists, and no others.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.model import STANDARD_FIELDS, Host, Instance, Inventory
from scheduler_service.store import host_rows, loading, schema, writing
from scheduler_service.store.connection import Writer, in_chunks, next_number

Progress = Callable[[str, int, int], None]
_MANY = 2000


@dataclasses.dataclass(slots=True)
class Report:
    """How many things an import added, changed, removed, left alone."""

    added: Counter[str] = dataclasses.field(default_factory=Counter)
    changed: Counter[str] = dataclasses.field(default_factory=Counter)
    removed: Counter[str] = dataclasses.field(default_factory=Counter)
    same: Counter[str] = dataclasses.field(default_factory=Counter)

    def to_dict(self) -> dict[str, dict[str, int]]:
        """Return the counts by kind of thing."""
        return {
            kind: {
                'added': self.added[kind],
                'changed': self.changed[kind],
                'removed': self.removed[kind],
                'same': self.same[kind],
            }
            for kind in Inventory.__struct_fields__
        }


def _quiet(what: str, done: int, total: int) -> None:
    """Show no progress."""


class Importer:
    """One import, in one transaction of the caller's.

    :param replace: remove what the document does not name
    :param progress: called with (what, done, total)
    """

    def __init__(
        self,
        writer: Writer,
        replace: bool = False,
        progress: Progress = _quiet,
    ) -> None:
        self.writer = writer
        self.conn = writer.conn
        self.replace = replace
        self.progress = progress
        self.report = Report()

    def run(self, inventory: Inventory) -> Report:
        """Write what differs and return what that was.

        :raises Conflict: a host to remove still holds claims, or a name is
            taken
        """
        self._hosts(inventory.hosts, inventory.instances)
        self._instances(inventory.instances)
        self._small('pools', loading.pools(self.conn), inventory.pools, 'id')
        stored = {one.id: one for one in loading.aggregates(self.conn)}
        self._small('aggregates', stored, inventory.aggregates, 'id')
        self._small(
            'server_groups',
            loading.groups(self.conn),
            inventory.server_groups,
            'uuid',
        )
        if len(self.writer.touched.hosts) > _MANY:
            self.writer.touched.everything = True
            self.writer.touched.hosts = []
            self.writer.touched.instances = []
        return self.report

    def _small(
        self,
        kind: str,
        stored: dict[Any, Any],
        wanted: Sequence[Any],
        key: str,
    ) -> None:
        """Write pools, aggregates or groups that differ."""
        new = {getattr(one, key): _sorted(one) for one in wanted}
        old = {name: _sorted(one) for name, one in stored.items()}
        differ = [k for k in new if k in old and old[k] != new[k]]
        add = [k for k in new if k not in old]
        gone = [k for k in old if k not in new] if self.replace else []
        verbs = writing.VERBS[kind]
        if gone or differ:
            verbs.remove(self.writer, gone + differ)
        if add or differ:
            verbs.add(self.writer, [new[k] for k in differ + add])
        self._count(kind, len(add), len(differ), len(gone), len(new))

    def _count(
        self, kind: str, added: int, changed: int, removed: int, total: int
    ) -> None:
        self.report.added[kind] += added
        self.report.changed[kind] += changed
        self.report.removed[kind] += removed
        self.report.same[kind] += total - added - changed

    def _hosts(
        self, wanted: Sequence[Host], instances: Sequence[Instance]
    ) -> None:
        stored = loading.hosts(self.conn, reported=True)
        ids = {
            (host.host, host.hypervisor_hostname): store_id
            for store_id, host in stored.items()
        }
        mine = self._claimed(instances)
        listed = Counter((i.host, i.hypervisor_hostname) for i in instances)
        add, differ = [], []
        for host in wanted:
            name = host.host, host.hypervisor_hostname
            store_id = ids.get(name)
            plain = _as_reported(
                host, mine.get(store_id, {}) if store_id else {}, listed[name]
            )
            if store_id is None:
                add.append(plain)
            elif stored[store_id] != plain:
                differ.append((store_id, plain))
        named = {(h.host, h.hypervisor_hostname) for h in wanted}
        gone = [ids[name] for name in ids if name not in named]
        gone = gone if self.replace else []
        host_rows.remove(self.writer, gone)
        self._change_hosts(differ)
        self._add_hosts(add)
        self._count('hosts', len(add), len(differ), len(gone), len(wanted))

    def _claimed(
        self, instances: Sequence[Instance]
    ) -> dict[int, dict[str, int]]:
        """Return what the listed instances hold by claims, by host id."""
        table = schema.allocations
        found: dict[int, dict[str, int]] = defaultdict(dict)
        for part in in_chunks((one.uuid for one in instances), 500):
            query = sa.select(table).where(table.c.consumer_uuid.in_(part))
            for row in self.conn.execute(query):
                held = found[row.host_id]
                held[row.resource_class] = (
                    held.get(row.resource_class, 0) + row.amount
                )
        return found

    def _add_hosts(self, hosts: Sequence[Host]) -> None:
        if not hosts:
            return
        last = next_number(self.conn, 'host_id', len(hosts))
        numbered = list(enumerate(hosts, last - len(hosts) + 1))
        done = 0
        for part in in_chunks(numbered, _MANY):
            host_rows.add(self.writer, part)
            done += len(part)
            self.progress('hosts', done, len(hosts))

    def _change_hosts(self, hosts: Sequence[tuple[int, Host]]) -> None:
        done = 0
        for part in in_chunks(hosts, _MANY):
            host_rows.change(self.writer, part)
            done += len(part)
            self.progress('changed hosts', done, len(hosts))

    def _instances(self, wanted: Sequence[Instance]) -> None:
        stored = {
            one.uuid: (one, state)
            for one, state in loading.instance_documents(self.conn)
        }
        add = [one for one in wanted if one.uuid not in stored]
        differ = [
            one
            for one in wanted
            if one.uuid in stored and stored[one.uuid][0] != one
        ]
        named = {one.uuid for one in wanted}
        gone = [
            uuid
            for uuid, (_, state) in stored.items()
            if self.replace and uuid not in named and state == 'reported'
        ]
        writing.remove_instances(self.writer, gone)
        writing.change_instances(self.writer, differ)
        done = 0
        for part in in_chunks(add, _MANY):
            writing.add_instances(self.writer, part, time.time())
            done += len(part)
            self.progress('instances', done, len(add))
        self._count('instances', len(add), len(differ), len(gone), len(wanted))


def export(conn: Connection) -> Inventory:
    """Return the whole store as an inventory document."""
    counts = loading.instance_counts(conn)
    hosts = list(loading.hosts(conn).values())
    for host in hosts:
        # Given only where it says more than the instances listed.
        name = host.host, host.hypervisor_hostname
        if host.num_instances == counts.get(name, 0):
            host.num_instances = None
    return Inventory(
        pools=list(loading.pools(conn).values()),
        hosts=hosts,
        aggregates=loading.aggregates(conn),
        instances=[one for one, _ in loading.instance_documents(conn)],
        server_groups=list(loading.groups(conn).values()),
    )


def _as_reported(host: Host, held: dict[str, int], listed: int) -> Host:
    """Return the document as stored: use less the claims it counts in."""
    changes: dict[str, Any] = {'traits': sorted(set(host.traits))}
    for name, (_, used, _ratio) in STANDARD_FIELDS.items():
        changes[used] = max(getattr(host, used) - held.get(name, 0), 0)
    changes['resources'] = {
        name: msgspec.structs.replace(
            offer, used=max(offer.used - held.get(name, 0), 0)
        )
        for name, offer in host.resources.items()
    }
    given = host.num_instances
    changes['num_instances'] = 0 if given is None else given - listed
    return msgspec.structs.replace(host, **changes)


def _sorted(one: Any) -> Any:
    """Return a pool, aggregate or group with its lists in fixed order."""
    changes = {
        name: sorted(set(getattr(one, name)))
        for name in ('hosts', 'members')
        if hasattr(one, name)
    }
    return msgspec.structs.replace(one, **changes) if changes else one
