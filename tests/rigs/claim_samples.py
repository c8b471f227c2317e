"""All claims of a store in one snapshot, held against its own rules.

Whatever callers do at that moment: what is used is what hosts report and what
is allocated, nothing is given twice, and claims and allocations go together.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.model.inventory import provider_of
from scheduler_service.store import schema
from tests.rigs.claim_model import Place
from tests.rigs.claim_room import Member

# What every instance takes beside its memory.
VCPUS = 1
# What licensed instances take one of: of their host, and of the aggregate of
# all hosts.
LOCAL, SHARED = 'CUSTOM_LOCAL', 'CUSTOM_SHARED'
AGGREGATE = 1


@dataclasses.dataclass
class Sample:
    """What the tables held at one moment.

    :ivar places: of all instances that they have
    :ivar wrong: what does not go together
    """

    places: dict[str, Place]
    wrong: list[str]


@dataclasses.dataclass
class Tables:
    """Rows by their keys.

    :ivar inventories: (host id, class) -> capacity, used, reported
    :ivar not_offered: keys of inventories that only claims need
    :ivar held: (consumer, host id) -> class -> amount
    :ivar places: of instances
    :ivar placements: (uuid, whether of a move) -> JSON
    :ivar moves: uuid -> host id
    :ivar groups: uuid -> members
    """

    inventories: dict[tuple[int, str], tuple[int, int, int]]
    not_offered: set[tuple[int, str]]
    held: dict[tuple[str, int], dict[str, int]]
    places: dict[str, Place]
    placements: dict[tuple[str, bool], str]
    moves: dict[str, int]
    groups: dict[str, set[str]]


def take(
    conn: Connection, hosts: Mapping[str, int], members: Mapping[str, Member]
) -> Sample:
    """Read all claims, and compare them.

    :param hosts: name -> id in the store
    :param members: what each instance takes, and its group
    """
    tables = read(conn)
    wrong = [
        f'{uuid} moves, and is nowhere'
        for uuid in tables.moves
        if uuid not in tables.places
    ]
    wrong += capacity(tables)
    wrong += _claims(tables, hosts, members)
    wrong += _groups(tables, members)
    return Sample(tables.places, wrong)


def read(conn: Connection) -> Tables:
    """Read all claims with one statement."""
    tables = Tables({}, set(), defaultdict(dict), {}, {}, {}, defaultdict(set))
    targets: dict[str, str] = {}
    for kind, a, b, c, d, *numbers in conn.execute(_EVERYTHING):
        if kind == 'inventory':
            tables.inventories[int(a), b] = tuple(numbers)
            if int(c) == 0:
                tables.not_offered.add((int(a), b))
        elif kind == 'allocation':
            tables.held[a, int(b)][c] = numbers[0]
        elif kind == 'instance':
            tables.places[a] = Place(c, b)
            tables.placements[a, False] = d
        elif kind == 'move':
            targets[a] = b
            tables.moves[a] = int(c)
            tables.placements[a, True] = d
        else:
            tables.groups[a].add(b)
    for uuid, target in targets.items():
        if uuid in tables.places:
            tables.places[uuid] = tables.places[uuid]._replace(target=target)
    return tables


def capacity(tables: Tables) -> Iterable[str]:
    """Yield hosts whose use is not explained, or is more than they have.

    What is not offered any more has only claims that were made before.
    """
    sums: Counter[tuple[int, str]] = Counter()
    for (_, host_id), amounts in tables.held.items():
        for name, amount in amounts.items():
            sums[host_id, name] += amount
    for key, (capacity, used, reported) in tables.inventories.items():
        if used != reported + sums[key]:
            yield (
                f'{key} has {used} used, {reported} reported and '
                f'{sums[key]} allocated'
            )
        if key in tables.not_offered:
            if not sums[key]:
                yield f'{key} is neither offered nor allocated'
        elif sums[key] > capacity:
            yield f'{key} has {sums[key]} allocated of {capacity}'


def _claims(
    tables: Tables, hosts: Mapping[str, int], members: Mapping[str, Member]
) -> Iterable[str]:
    """Yield claims and allocations that do not go together."""
    wanted: dict[tuple[str, int], dict[str, int]] = {}
    for uuid, place in tables.places.items():
        takes = {'MEMORY_MB': members[uuid].size, 'VCPU': VCPUS}
        if members[uuid].licensed:
            takes[LOCAL] = 1
        for moving, host in ((False, place.host), (True, place.target)):
            if not host or not (moving or place.is_claimed):
                continue
            wanted[uuid, hosts[host]] = takes
            if members[uuid].licensed:
                wanted[uuid, provider_of(AGGREGATE)] = {SHARED: 1}
            placement = json.loads(tables.placements[uuid, moving] or '{}')
            told = placement.get('selected', {}).get('host')
            if told != host:
                yield f'{uuid} has a claim on {host}, its caller knows {told}'
    for key in wanted.keys() | tables.held.keys():
        held, claimed = tables.held.get(key), wanted.get(key)
        if held != claimed:
            yield f'{key} holds {held}, and has a claim of {claimed}'


def _groups(tables: Tables, members: Mapping[str, Member]) -> Iterable[str]:
    """Yield members that left their groups, and policies that do not hold.

    What belongs to a group is what was placed as its member.
    """
    placed: dict[str, dict[str, set[str]]] = defaultdict(dict)
    for uuid, place in tables.places.items():
        group = members[uuid].group
        if not group or not place.is_claimed:
            continue
        placed[group][uuid] = {
            one for one in (place.host, place.target) if one
        }
        if uuid not in tables.groups[group]:
            yield f'{uuid} has a claim, and is no member of {group}'
    for group, hosts in placed.items():
        some = members[min(hosts)]
        counts = Counter(host for each in hosts.values() for host in each)
        if some.policy == 'affinity':
            kept = len(hosts) < 2 or len(hosts) in counts.values()
        else:
            kept = max(counts.values()) <= some.most
        if not kept:
            yield f'{some.policy} group {group} has members on {dict(counts)}'


def _row(kind: str, *columns: Any) -> sa.Select[Any]:
    """Return a query for four texts and three numbers."""
    texts = [sa.cast(column, sa.Text()) for column in columns[:4]]
    texts += [sa.cast(sa.literal(''), sa.Text())] * (4 - len(texts))
    numbers = [*columns[4:]]
    numbers += [sa.literal_column('0')] * (3 - len(numbers))
    return sa.select(
        sa.literal_column(f"'{kind}'"),
        *(one.label(f't{at}') for at, one in enumerate(texts)),
        *(one.label(f'n{at}') for at, one in enumerate(numbers)),
    )


def _everything() -> Any:
    """Return one statement, which every database answers of one snapshot."""
    offered, held = schema.inventories.c, schema.allocations.c
    inst, moves = schema.instances.c, schema.moves.c
    grouped, none = schema.server_group_members.c, sa.literal('')
    return sa.union_all(
        _row(
            'inventory',
            offered.host_id,
            offered.resource_class,
            offered.max_unit,
            none,
            offered.total - offered.reserved,
            offered.used,
            offered.reported,
        ),
        _row(
            'allocation',
            held.consumer_uuid,
            held.host_id,
            held.resource_class,
            none,
            held.amount,
        ),
        _row('instance', inst.uuid, inst.host, inst.state, inst.placement),
        _row(
            'move',
            moves.instance_uuid,
            moves.host,
            moves.host_id,
            moves.placement,
        ),
        _row('member', grouped.group_uuid, grouped.instance_uuid),
    )


_EVERYTHING = _everything()
