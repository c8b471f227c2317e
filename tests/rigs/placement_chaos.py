"""Daemons that claim in a real placement service, for the chaos of faults.

Hosts are those of a compute service's databases. Nobody builds instances, so
none is confirmed: a caller drops each move again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from scheduler_service.store import schema
from tests.rigs import chaos
from tests.support import clouds
from tests.support.clouds import Cloud
from tests.support.nova_databases import NovaDatabases
from tests.support.placement_service import (
    PlacementService,
    placement_service,
)
from tests.support.stores import stored_host
from tests.support.waiting import LIMIT_S, wait_until

_AWAY_S = 1.0
# Consumer and provider -> memory in MB.
Book = dict[tuple[str, str], int]


class PlacementCaller(chaos.Caller):
    """A caller of instances that nobody builds."""

    def _confirm(self) -> None:
        self._settle_move()

    def _settle_move(self) -> None:
        moving = [one for one in self._placed() if self.known[one].target]
        if moving:
            one = self._rng.choice(moving)
            self._repeat('drop_moves', [one])
            self.known[one].target = None


@dataclasses.dataclass
class PlacementCloud(Cloud):
    """Daemons whose hosts have providers."""

    placement: PlacementService = dataclasses.field(init=False)

    def bring(self, document: Any) -> None:
        """Import what is not mirrored of a document."""
        super().bring({'server_groups': document['server_groups']})

    def restart_placement(self) -> None:
        """Kill the placement service, and start it again."""
        self.placement.stop()
        time.sleep(_AWAY_S)
        self.placement.start()

    def books(self) -> list[str]:
        """Return what an audit finds, and where the two books differ.

        What is being undone, and use that is read again soon, has some time:
        a record that failed often is looked at again after a minute. Where
        they differ after it, records that may tell why come with them.
        """
        deadline = time.monotonic() + LIMIT_S
        while found := super().books() + self._differences():
            if time.monotonic() > deadline:
                return [*found, *self._reasons()]
            time.sleep(1.0)
        return []

    def _reasons(self) -> list[str]:
        """Return the use by others that hosts have, and the marks of records.

        There are no others here: that use was ours when providers were read.
        """
        table, offered = schema.stage_records, schema.inventories
        use = sa.select(offered).where(offered.c.reported != 0)
        with self.store.reading() as conn:
            names = dict(
                conn.execute(
                    sa.select(schema.hosts.c.id, schema.hosts.c.host)
                ).all()
            )
            return [
                f'{names.get(row.host_id)}: {dict(row._mapping)}'
                for query in (use, sa.select(table).order_by(table.c.host_id))
                for row in conn.execute(query)
            ]

    def _differences(self) -> list[str]:
        ours, theirs = self._ours(), self._theirs()
        return [
            *(f'{key} has no allocation' for key in ours.keys() - theirs),
            *(f'{key} has no claim' for key in theirs.keys() - ours),
            *(
                f'{key} has {theirs[key]} MB, claimed {ours[key]}'
                for key in ours.keys() & theirs
                if ours[key] != theirs[key]
            ),
        ]

    def _ours(self) -> Book:
        held, hosts = schema.allocations.c, schema.hosts.c
        query = sa.select(
            held.consumer_uuid, hosts.uuid, held.amount
        ).join_from(schema.allocations, schema.hosts, held.host_id == hosts.id)
        with self.store.reading() as conn:
            rows = conn.execute(
                query.where(held.resource_class == 'MEMORY_MB')
            )
            return {(one, host): amount for one, host, amount in rows}

    def _theirs(self) -> Book:
        found: Book = Counter()
        for provider in self.placement.call('GET', '/resource_providers')[
            'resource_providers'
        ]:
            host = provider['uuid']
            path = f'/resource_providers/{host}/allocations'
            held = self.placement.call('GET', path)['allocations']
            for consumer, one in held.items():
                found[consumer, host] += one['resources'].get('MEMORY_MB', 0)
        return found


@contextlib.contextmanager
def cloud(
    database: str,
    bus: str,
    daemons: int,
    workers: int = 2,
    interval_s: float = 60.0,
) -> Iterator[PlacementCloud]:
    """Run daemons, a placement service and databases on one server.

    :param database: URL of the server without a database
    :param workers: processes of the placement service
    :param interval_s: after which all providers are read again
    """
    with placement_service(database, workers) as service:
        nova = NovaDatabases(database)
        nova.reset()
        names = [one['host'] for one in chaos.inventory()['hosts']]
        for one in chaos.inventory()['hosts']:
            made = str(uuid.uuid4())
            room = {
                name: one[name] for name in ('vcpus', 'memory_mb', 'local_gb')
            }
            nova.add_host(one['host'], uuid=made, **room)
            service.add_provider(
                made, one['host'], VCPU=one['vcpus'],
                MEMORY_MB=one['memory_mb'], DISK_GB=one['local_gb'],
            )  # fmt: skip
        nova.close()
        extra = (
            f'[compute]\napi_database = {nova.api}\nuse_placement = true\n'
            f'service_down_time = 1000000\n'
            f'placement_interval = {interval_s}\n{service.options}'
        )
        with clouds.cloud(
            database, bus, daemons, extra, kind=PlacementCloud
        ) as running:
            running.placement = service
            wait_until(
                lambda: all(
                    (host := stored_host(running.store, name)) and host.vcpus
                    for name in names
                ),
            )
            yield running
