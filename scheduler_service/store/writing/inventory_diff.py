"""What an import would change, without changing it.

A :class:`Comparison` belongs to the thread of its connection. It compares as
an import does, so both say the same; where the import writes, it keeps what
differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy.engine import Connection

from scheduler_service.model import Host, Instance, Inventory, ServerGroup
from scheduler_service.store.connection import Writer
from scheduler_service.store.writing.inventory_import import Importer


class Difference(NamedTuple):
    """One field of an entity, or a whole entity.

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
    conn: Connection, wanted: Inventory, replace: bool
) -> tuple[list[Difference], list[ServerGroup]]:
    """Return what an import of a document would change, by kind.

    :param replace: as of an import that removes what the document has not
    :return: (what would change, the groups that would stay all the same)
    """
    comparison = Comparison(Writer(conn), replace)
    report = comparison.run(wanted)
    order = list(Inventory.__struct_fields__)
    found = sorted(
        comparison.found,
        key=lambda one: (order.index(one.kind), one.name, one.field or ''),
    )
    return found, report.kept


class Comparison(Importer):
    """An import that writes nothing.

    :ivar found: what it would have written
    """

    def __init__(self, writer: Writer, replace: bool) -> None:
        super().__init__(writer, replace)
        self.found: list[Difference] = []

    def lock_groups(self, uuids: Iterable[str]) -> None:
        """Lock nothing, since nothing is written."""

    def write_entities(
        self,
        kind: str,
        add: Sequence[Any],
        differ: Sequence[tuple[Any, Any]],
        gone: Sequence[Any],
        key: str,
    ) -> None:
        """Keep what differs of pools, aggregates or groups."""
        self._keep(kind, add, differ, gone)

    def write_hosts(
        self,
        stored: Mapping[int, Host],
        add: Sequence[Host],
        differ: Sequence[tuple[int, Host]],
        gone: Sequence[int],
    ) -> None:
        """Keep what differs of hosts; their use is that without claims."""
        pairs = [(stored[number], after) for number, after in differ]
        self._keep('hosts', add, pairs, [stored[number] for number in gone])

    def write_instances(
        self,
        add: Sequence[Instance],
        differ: Sequence[tuple[Instance, Instance]],
        gone: Sequence[Instance],
    ) -> None:
        """Keep what differs of instances."""
        self._keep('instances', add, differ, gone)

    def _keep(
        self,
        kind: str,
        add: Sequence[Any],
        differ: Sequence[tuple[Any, Any]],
        gone: Sequence[Any],
    ) -> None:
        for one in add:
            self.found.append(Difference(kind, _name(one), 'add'))
        for one in gone:
            self.found.append(Difference(kind, _name(one), 'remove'))
        for before, after in differ:
            for field in after.__struct_fields__:
                old, new = getattr(before, field), getattr(after, field)
                if old != new:
                    self.found.append(
                        Difference(
                            kind, _name(after), 'change', field,
                            msgspec.to_builtins(old), msgspec.to_builtins(new),
                        )
                    )  # fmt: skip


def _name(entity: Any) -> str:
    """Return what an operator calls it."""
    if isinstance(entity, Host):
        node = entity.hypervisor_hostname
        return entity.host if node == entity.host else f'{entity.host} {node}'
    name = getattr(entity, 'name', '') or getattr(entity, 'uuid', '')
    return str(name)
