"""Imports an inventory document into the store.

An :class:`Importer` belongs to the thread that owns its writing transaction.
Only what differs is written: importing a document again changes nothing.
Claims are never changed; the use that a document states for a host includes
the claims of the instances it lists, and no others. Members of server groups
that hold claims stay members, and groups with instances stay.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from scheduler_service.model import (
    STANDARD_FIELDS,
    Host,
    Instance,
    Inventory,
    ServerGroup,
)
from scheduler_service.store import schema
from scheduler_service.store.claims import lifecycle
from scheduler_service.store.connection import Writer, in_chunks, next_number
from scheduler_service.store.reading import loading
from scheduler_service.store.writing import aggregates as aggregate_rows
from scheduler_service.store.writing import hosts as host_rows
from scheduler_service.store.writing import instances as instance_rows
from scheduler_service.store.writing import pools as pool_rows
from scheduler_service.store.writing import server_groups

Progress = Callable[[str, int, int], None]
_MANY = 2000


class EntityOps(NamedTuple):
    """How entities of one kind are added, removed and changed.

    :ivar change: gets (what is stored, what is wanted); None: they are
        removed and added again
    """

    add: Callable[[Writer, Sequence[Any]], None]
    remove: Callable[[Writer, Sequence[Any]], int]
    change: Callable[[Writer, Sequence[tuple[Any, Any]]], None] | None = None


_ENTITY_OPS: Mapping[str, EntityOps] = {
    'pools': EntityOps(pool_rows.add, pool_rows.remove),
    'aggregates': EntityOps(aggregate_rows.add, aggregate_rows.remove),
    'server_groups': EntityOps(
        server_groups.add, server_groups.remove, server_groups.change
    ),
}


@dataclasses.dataclass(slots=True)
class Report:
    """How many entities an import added, changed, removed or left alone.

    :ivar kept: the groups that it would have removed if no instances were in
        them; they count as left alone
    """

    added: Counter[str] = dataclasses.field(default_factory=Counter)
    changed: Counter[str] = dataclasses.field(default_factory=Counter)
    removed: Counter[str] = dataclasses.field(default_factory=Counter)
    same: Counter[str] = dataclasses.field(default_factory=Counter)
    kept: list[ServerGroup] = dataclasses.field(default_factory=list)

    def to_dict(self) -> dict[str, dict[str, int]]:
        """Return the counts by kind of entity."""
        return {
            kind: {
                'added': self.added[kind],
                'changed': self.changed[kind],
                'removed': self.removed[kind],
                'same': self.same[kind],
            }
            for kind in Inventory.__struct_fields__
        }


def _no_progress(what: str, done: int, total: int) -> None:
    """Show no progress."""


class Importer:
    """One import, in a transaction of the caller.

    :param replace: remove what the document does not list, except claimed
        instances, and server groups that have instances as members
    :param progress: called with (what, how many are done, how many in all)
    """

    def __init__(
        self,
        writer: Writer,
        replace: bool = False,
        progress: Progress = _no_progress,
    ) -> None:
        self.writer = writer
        self.conn = writer.conn
        self.replace = replace
        self.progress = progress
        self.report = Report()
        # Instances that this import removes.
        self._gone: set[str] = set()

    def run(self, inventory: Inventory) -> Report:
        """Write what differs; return how much that was.

        :raises Conflict: a host to remove still holds claims
        :raises DBDuplicateEntry: a name or uuid is taken
        """
        self._hosts(inventory.hosts, inventory.instances)
        self._instances(inventory.instances)
        self._entities(
            'pools', loading.pools(self.conn), inventory.pools, 'id'
        )
        stored = {one.id: one for one in loading.aggregates(self.conn)}
        self._entities('aggregates', stored, inventory.aggregates, 'id')
        self._groups(inventory.server_groups)
        if len(self.writer.touched.hosts) > _MANY:
            self.writer.touched.everything = True
            self.writer.touched.hosts = []
            self.writer.touched.instances = []
        return self.report

    def _groups(self, wanted: Sequence[ServerGroup]) -> None:
        """Write groups that differ.

        Members that hold claims count as wanted: they may have joined since
        the document was written.
        """
        stored = loading.groups(self.conn)
        beside = {
            one.uuid: set(stored[one.uuid].members).difference(one.members)
            for one in wanted
            if one.uuid in stored
        }
        held = server_groups.holding_claims(
            self.conn, set().union(*beside.values())
        )
        kept = [
            msgspec.structs.replace(
                one,
                members=[*one.members, *held & beside.get(one.uuid, set())],
            )
            for one in wanted
        ]
        self._entities(
            'server_groups', self._without_kept(stored, wanted), kept, 'uuid'
        )

    def _without_kept(
        self, stored: dict[str, ServerGroup], wanted: Sequence[ServerGroup]
    ) -> dict[str, ServerGroup]:
        """Return the stored groups, except those that stay as they are.

        A request may have made a group since the document was written.
        Without it the next request would break the policy of its members.
        """
        if not self.replace:
            return stored
        absent = stored.keys() - {one.uuid for one in wanted}
        self.lock_groups(absent)
        stay = server_groups.with_instances(self.conn, absent, self._gone)
        self.report.kept = [stored[uuid] for uuid in sorted(stay)]
        self.report.same['server_groups'] += len(stay)
        return {uuid: stored[uuid] for uuid in stored if uuid not in stay}

    def lock_groups(self, uuids: Iterable[str]) -> None:
        """See to it that no instance joins these groups before the end."""
        server_groups.lock(self.conn, uuids)

    def _entities(
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
        self.write_entities(
            kind,
            [new[k] for k in add],
            [(old[k], new[k]) for k in differ],
            [old[k] for k in gone],
            key,
        )
        self._count(kind, len(add), len(differ), len(gone), len(new))

    def write_entities(
        self,
        kind: str,
        add: Sequence[Any],
        differ: Sequence[tuple[Any, Any]],
        gone: Sequence[Any],
        key: str,
    ) -> None:
        """Write what differs of pools, aggregates or groups.

        :param differ: (what is stored, what is wanted)
        :param key: the name of the field that identifies them
        """
        ops = _ENTITY_OPS[kind]
        old, new = list(gone), list(add)
        if ops.change is None:
            old += [before for before, _ in differ]
            new = [*(after for _, after in differ), *new]
        elif differ:
            ops.change(self.writer, differ)
        if old:
            ops.remove(self.writer, [getattr(one, key) for one in old])
        if new:
            ops.add(self.writer, new)

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
        self.write_hosts(stored, add, differ, gone)
        self._count('hosts', len(add), len(differ), len(gone), len(wanted))

    def write_hosts(
        self,
        stored: Mapping[int, Host],
        add: Sequence[Host],
        differ: Sequence[tuple[int, Host]],
        gone: Sequence[int],
    ) -> None:
        """Write what differs of hosts.

        :param stored: all that are stored, by id
        :param differ: (id, what is wanted)
        :param gone: ids
        """
        host_rows.remove(self.writer, gone)
        self._change_hosts(differ)
        self._add_hosts(add)

    def _claimed(
        self, instances: Sequence[Instance]
    ) -> dict[int, dict[str, int]]:
        """Return what claims of the listed instances hold, by host id."""
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
        self._gone.update(gone)
        differ = self._where_claimed(differ)
        changed = [(stored[one.uuid][0], one) for one in differ]
        self.write_instances(add, changed, [stored[uuid][0] for uuid in gone])
        self._count('instances', len(add), len(differ), len(gone), len(wanted))

    def _where_claimed(self, wanted: Sequence[Instance]) -> list[Instance]:
        """Return instances, those that hold claims where these are.

        The document may be older than the claim.
        """
        locked = lifecycle.lock(self.conn, [one.uuid for one in wanted])
        return [
            one
            if (row := locked.get(one.uuid)) is None or row.state == 'reported'
            else msgspec.structs.replace(
                one, host=row.host, hypervisor_hostname=row.node
            )
            for one in wanted
        ]

    def write_instances(
        self,
        add: Sequence[Instance],
        differ: Sequence[tuple[Instance, Instance]],
        gone: Sequence[Instance],
    ) -> None:
        """Write what differs of instances.

        :param differ: (what is stored, what is wanted)
        """
        instance_rows.remove(self.writer, [one.uuid for one in gone])
        instance_rows.change(self.writer, [after for _, after in differ])
        done = 0
        for part in in_chunks(add, _MANY):
            instance_rows.add(self.writer, part)
            done += len(part)
            self.progress('instances', done, len(add))


def _as_reported(host: Host, held: dict[str, int], listed: int) -> Host:
    """Return the document with use that excludes the claims it includes.

    :param held: resource class -> what claims of listed instances hold
    :param listed: how many instances the document lists on the host
    """
    changes: dict[str, Any] = {'traits': sorted(set(host.traits))}
    for name, (_, used, _ratio) in STANDARD_FIELDS.items():
        changes[used] = max(getattr(host, used) - held.get(name, 0), 0)
    changes['resources'] = {
        name: msgspec.structs.replace(
            offer, used=max(offer.used - held.get(name, 0), 0)
        )
        for name, offer in host.resources.items()
    }
    stated = host.num_instances
    changes['num_instances'] = 0 if stated is None else stated - listed
    return msgspec.structs.replace(host, **changes)


def _sorted(entity: Any) -> Any:
    """Return a pool, aggregate or group with its lists in fixed order."""
    changes = {
        name: sorted(set(getattr(entity, name)))
        for name in ('hosts', 'members')
        if hasattr(entity, name)
    }
    return msgspec.structs.replace(entity, **changes) if changes else entity
