"""Loads all instances into the index that filters and weighers look at.

Any thread may load with a connection of its own. A cloud has many more
instances than hosts, so what many of them have in common is kept once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.columns.build import image_properties
from scheduler_service.columns.instances import InstanceIndex, PlacedInstance
from scheduler_service.store import schema
from scheduler_service.store.reading import loading

_PART = 25_000
_INSTANCES = schema.instances.c
_SELECT = (
    sa.select(
        _INSTANCES.uuid,
        _INSTANCES.host,
        _INSTANCES.node,
        _INSTANCES.state,
        _INSTANCES.project_id,
        _INSTANCES.document,
    )
    .where(_INSTANCES.uuid > sa.bindparam('after'))
    .order_by(_INSTANCES.uuid)
    .limit(sa.bindparam('part'))
)

# How many instances each (host, node) has or will get.
InstanceCounts = Mapping[tuple[str, str], int]
# Of an instance: flavorid, image properties, task state.
_Details = tuple[str | None, frozenset[tuple[str, str]], str | None]


class _Document(msgspec.Struct):
    """What the index needs of an instance's document."""

    flavor: dict[str, Any] = {}
    image_meta: dict[str, Any] = {}
    task_state: str | None = None


_decode = msgspec.json.Decoder(_Document).decode


def load_instances(
    conn: Connection, names: dict[str, str]
) -> tuple[InstanceIndex, InstanceCounts]:
    """Load all instances.

    :param names: host name -> the one string object to use for it
    """
    moves_to = loading.bound_for(conn)
    details: dict[str, _Details] = {}
    counts: Counter[tuple[str, str]] = Counter()
    placed: dict[str, PlacedInstance] = {}
    after = ''
    while True:
        rows = conn.execute(_SELECT, {'after': after, 'part': _PART}).all()
        hosts = shared(names, [row[1] for row in rows])
        nodes = shared(names, [row[2] for row in rows])
        projects = shared(names, [row[4] for row in rows])
        counts.update(zip(hosts, nodes, strict=True))
        for row, host, node, project in zip(
            rows, hosts, nodes, projects, strict=True
        ):
            uuid, _, _, state, _, document = row
            found = details.get(document)
            if found is None:
                found = details[document] = _details(document)
            flavorid, image, task_state = found
            placed[uuid] = PlacedInstance(
                uuid,
                host,
                node,
                project,
                flavorid,
                image,
                task_state,
                state != 'reported',
                moves_to.get(uuid, ''),
            )
        if len(rows) < _PART:
            break
        after = rows[-1].uuid
    moves = schema.moves.c
    for pair in conn.execute(sa.select(moves.host, moves.node)):
        counts[pair.host, pair.node] += 1
    return InstanceIndex(placed), counts


def shared(names: dict[Any, Any], values: Sequence[Any]) -> list[Any]:
    """Return values, with one object for all that are equal.

    :param names: value -> the object to use for it; new ones are added
    """
    return list(map(names.setdefault, values, values))


def _details(document: str) -> _Details:
    decoded = _decode(document)
    flavorid = decoded.flavor.get('flavorid')
    return (
        None if flavorid is None else str(flavorid),
        image_properties(decoded.image_meta),
        decoded.task_state,
    )
