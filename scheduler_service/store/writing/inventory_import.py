"""Imports an inventory document into the store, or compares it.

An :class:`Importer` belongs to the thread that owns its writing transaction.
Only entities that differ are written: importing a document again changes
nothing. Claims never change; the use of a host in a document includes the
claims of the document's instances alone. Members of server groups that hold
claims stay members, and groups with instances stay.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.model import (
    STANDARD_FIELDS,
    Host,
    Instance,
    Inventory,
    ServerGroup,
)
from scheduler_service.model.inventory import provider_of
from scheduler_service.store import schema
from scheduler_service.store.claims import lifecycle
from scheduler_service.store.connection import Writer, in_chunks, next_number
from scheduler_service.store.reading import loading
from scheduler_service.store.rows import select_in
from scheduler_service.store.writing import (
    aggregates,
    hosts,
    instances,
    inventories,
    pools,
    server_groups,
)

Progress = Callable[[str, int, int], None]
_MANY = 2000
# Fields that include the document's instances and their claims, and traits,
# whose order does not matter.
_WITH_CLAIMS = (
    *(used for _, used, _ in STANDARD_FIELDS.values()),
    'resources',
    'num_instances',
    'traits',
)


class ImportChanges(NamedTuple):
    """Changes of an import to the entities of a kind.

    :ivar kind: the part of the document, such as ``hosts``
    :ivar differ: (stored entity, entity of the document)
    """

    kind: str
    add: Sequence[Any]
    differ: Sequence[tuple[Any, Any]]
    gone: list[Any]


@dataclasses.dataclass(slots=True)
class Report:
    """How many entities an import added, changed, removed or kept the same.

    :ivar kept: groups that were not removed because of their instances; they
        count as the same
    """

    added: Counter[str] = dataclasses.field(default_factory=Counter)
    changed: Counter[str] = dataclasses.field(default_factory=Counter)
    removed: Counter[str] = dataclasses.field(default_factory=Counter)
    same: Counter[str] = dataclasses.field(default_factory=Counter)
    kept: list[ServerGroup] = dataclasses.field(default_factory=list)

    def to_dict(self) -> dict[str, dict[str, int]]:
        """Return the counts by kind of entity."""
        names = ('added', 'changed', 'removed', 'same')
        return {
            kind: {name: getattr(self, name)[kind] for name in names}
            for kind in Inventory.__struct_fields__
        }


class Importer:
    """An import, in a transaction of the caller.

    :ivar changes: by kind
    :param replace: remove entities that the document does not have, except
        claimed instances, and server groups that have instances as members
    :param progress: called with (what, number done, total)
    :param compare: only find differences; write nothing
    """

    def __init__(
        self,
        writer: Writer,
        replace: bool = False,
        progress: Progress | None = None,
        compare: bool = False,
    ) -> None:
        self.writer = writer
        self.changes: list[ImportChanges] = []
        self._conn = writer.conn
        self._replace = replace
        self._progress = progress
        self._compare = compare
        self._report = Report()
        # What claims of the document's instances hold: of each host, or
        # aggregate, by class.
        self._claimed: dict[int | None, Counter[str]] = defaultdict(Counter)

    def run(self, inventory: Inventory) -> Report:
        """Write the differences; return their numbers.

        :raises Conflict: a host to remove still holds claims
        :raises DBDuplicateEntry: a name or uuid is taken
        """
        conn = self._conn
        self._import_hosts(inventory.hosts, inventory.instances)
        gone = self._import_instances(inventory.instances)
        unclaimed = [
            msgspec.structs.replace(
                each,
                resources=inventories.without(
                    each.resources, self._claimed[provider_of(each.id)]
                ),
            )
            for each in inventory.aggregates
        ]
        for kind, rows, stored, entities in (
            ('pools', pools, loading.pools(conn).values(), inventory.pools),
            ('aggregates', aggregates,
             loading.aggregates(conn, reported=True), unclaimed),
        ):  # fmt: skip
            old = {entity.id: _sorted(entity) for entity in stored}
            new = {entity.id: _sorted(entity) for entity in entities}
            self._import(kind, old, new, functools.partial(_rewrite, rows))
        self._import_groups(inventory.server_groups, gone)
        touched = self.writer.touched
        if len(touched.hosts) > _MANY:
            touched.everything = True
            touched.hosts, touched.instances = [], []
        return self._report

    def _in_parts(
        self,
        what: str,
        entities: Sequence[Any],
        write: Callable[[Writer, Sequence[Any]], None],
    ) -> None:
        done = 0
        for part in in_chunks(entities, _MANY):
            write(self.writer, part)
            done += len(part)
            if self._progress is not None:
                self._progress(what, done, len(entities))

    def _import(
        self,
        kind: str,
        stored: Mapping[Any, Any],
        new: Mapping[Any, Any],
        write: Callable[[Writer, ImportChanges], None],
    ) -> list[Any]:
        """Count changes, and write them unless the import only compares.

        :param stored: by key, what is compared and may be removed
        :param new: entities of the document by key
        :return: the entities that are removed
        """
        changes = ImportChanges(
            kind,
            [new[k] for k in new if k not in stored],
            [
                (stored[k], new[k])
                for k in new
                if k in stored and stored[k] != new[k]
            ],
            [stored[k] for k in stored if self._replace and k not in new],
        )
        _, add, differ, gone = changes
        self.changes.append(changes)
        self._report.added[kind] += len(add)
        self._report.changed[kind] += len(differ)
        self._report.removed[kind] += len(gone)
        self._report.same[kind] += len(new) - len(add) - len(differ)
        if not self._compare:
            write(self.writer, changes)
        return changes.gone

    def _import_groups(
        self, groups: Sequence[ServerGroup], gone: set[str]
    ) -> None:
        """Import server groups.

        Members that hold claims stay: they may have joined since the document
        was written. Groups with instances as members stay: a request may have
        added the group since then, and without it the next request would
        break the policy of its members.

        :param gone: instances that this import removes
        """
        conn = self._conn
        stored = loading.groups(conn)
        beside = {
            group.uuid: {*stored[group.uuid].members} - {*group.members}
            if group.uuid in stored
            else set()
            for group in groups
        }
        held = server_groups.holding_claims(
            conn, set().union(*beside.values())
        )
        completed = {
            group.uuid: _sorted(
                msgspec.structs.replace(
                    group, members=[*group.members, *held & beside[group.uuid]]
                )
            )
            for group in groups
        }
        if self._replace:
            absent = stored.keys() - beside.keys()
            if not self._compare:
                server_groups.lock(conn, absent)
            stay = server_groups.with_instances(conn, absent, gone)
            self._report.kept = [stored.pop(uuid) for uuid in sorted(stay)]
            self._report.same['server_groups'] += len(stay)

        def write(writer: Writer, changes: ImportChanges) -> None:
            server_groups.change(writer, changes.differ)
            server_groups.remove(writer, [g.uuid for g in changes.gone])
            server_groups.add(writer, changes.add)

        old = {uuid: _sorted(group) for uuid, group in stored.items()}
        self._import('server_groups', old, completed, write)

    def _import_hosts(
        self,
        document_hosts: Sequence[Host],
        document_instances: Sequence[Instance],
    ) -> None:
        """Import hosts.

        :param document_instances: the document's instances
        """
        numbered = loading.hosts(self._conn, reported=True)
        ids = {_name(host): number for number, host in numbered.items()}
        claimed = self._claimed
        held_by = schema.allocations.c.consumer_uuid
        uuids = [instance.uuid for instance in document_instances]
        query = sa.select(schema.allocations)
        for row in select_in(self._conn, query, held_by, uuids):
            claimed[row.host_id][row.resource_class] += row.amount
        counts = Counter(_name(instance) for instance in document_instances)
        new = {}
        for host in document_hosts:
            name = _name(host)
            held = hosts.Held(claimed[ids.get(name)], instances=counts[name])
            fields = {field: getattr(host, field) for field in _WITH_CLAIMS}
            new[name] = hosts.as_stored(host, fields, held)

        def write(writer: Writer, changes: ImportChanges) -> None:
            _, add, differ, gone = changes
            hosts.remove(writer, [ids[_name(host)] for host in gone])
            changed = [(ids[_name(host)], host) for _, host in differ]
            self._in_parts('changed hosts', changed, hosts.change)
            last = next_number(writer.conn, 'host_id', len(add)) if add else 0
            added = list(enumerate(add, last - len(add) + 1))
            self._in_parts('hosts', added, hosts.add)

        stored = {_name(host): host for host in numbered.values()}
        self._import('hosts', stored, new, write)

    def _import_instances(self, entities: Sequence[Instance]) -> set[str]:
        """Import instances; return the uuids of removed instances.

        An instance that holds a claim stays, on the claim's host: the document
        may be older than the claim.
        """
        new = {entity.uuid: entity for entity in entities}
        stored = {
            instance.uuid: instance
            for instance, state in loading.instance_documents(self._conn)
            if instance.uuid in new or state == 'reported'
        }
        changed = [u for u in new if u in stored and stored[u] != new[u]]
        for uuid, row in lifecycle.lock(self._conn, changed).items():
            if row.state != 'reported':
                new[uuid] = msgspec.structs.replace(
                    new[uuid], host=row.host, hypervisor_hostname=row.node
                )

        def write(writer: Writer, changes: ImportChanges) -> None:
            instances.remove(writer, [entity.uuid for entity in changes.gone])
            instances.change(writer, [after for _, after in changes.differ])
            self._in_parts('instances', changes.add, instances.add)

        gone = self._import('instances', stored, new, write)
        return {entity.uuid for entity in gone}


def _rewrite(rows: Any, writer: Writer, changes: ImportChanges) -> None:
    """Write pools or aggregates, each whole."""
    _, add, differ, gone = changes
    if add or differ or gone:
        rows.remove(writer, [entity.id for entity in gone])
        rows.add(writer, [*(after for _, after in differ), *add])


class Difference(NamedTuple):
    """A differing field of an entity, or a whole entity.

    :ivar kind: the part of the document, such as ``hosts``
    :ivar change: ``add``, ``change`` or ``remove``
    :ivar field: None: the whole entity
    """

    kind: str
    name: str
    change: str
    field: str | None = None
    stored: Any = None
    wanted: Any = None


def differences(
    conn: Connection, inventory: Inventory, replace: bool
) -> tuple[list[Difference], list[ServerGroup]]:
    """Return what an import of a document would change, by kind.

    :param replace: as in :class:`Importer`
    :return: (differences, groups that would be kept)
    """
    importer = Importer(Writer(conn), replace, compare=True)
    report = importer.run(inventory)
    order = Inventory.__struct_fields__
    differing = [
        difference
        for changes in importer.changes
        for difference in _differences(changes)
    ]
    differing.sort(key=lambda d: (order.index(d.kind), d.name, d.field or ''))
    return differing, report.kept


def _differences(changes: ImportChanges) -> Iterator[Difference]:
    kind = changes.kind
    for entity in changes.add:
        yield Difference(kind, _label(entity), 'add')
    for entity in changes.gone:
        yield Difference(kind, _label(entity), 'remove')
    for before, after in changes.differ:
        for field in after.__struct_fields__:
            old, new = getattr(before, field), getattr(after, field)
            if old != new:
                yield Difference(
                    kind, _label(after), 'change', field,
                    msgspec.to_builtins(old), msgspec.to_builtins(new),
                )  # fmt: skip


def _name(entity: Host | Instance) -> tuple[str, str]:
    """Return the service host and the node of a host or an instance."""
    return entity.host, entity.hypervisor_hostname


def _label(entity: Any) -> str:
    """Return the name of an entity for operators."""
    if isinstance(entity, Host):
        return ' '.join(dict.fromkeys(_name(entity)))
    name = getattr(entity, 'name', '') or getattr(entity, 'uuid', '')
    return str(name)


def _sorted(entity: Any) -> Any:
    """Return a pool, aggregate or group with its lists in fixed order."""
    changes = {
        name: sorted(set(getattr(entity, name)))
        for name in ('hosts', 'members')
        if hasattr(entity, name)
    }
    return msgspec.structs.replace(entity, **changes)
