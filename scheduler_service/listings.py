"""Rows of lists: what commands print, for ``/v1`` and pages.

Any thread may call it. Hosts and zones are those of a copy of the engine's
table, so they are there while the database is away; the rest is read from it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.engine.newest_copy import NewestCopy
from scheduler_service.model import Flavor, Request
from scheduler_service.moments import Moment
from scheduler_service.pipeline import HostPipeline
from scheduler_service.planning import headroom, host_listing
from scheduler_service.settings import Settings
from scheduler_service.store.claims import claim_queries
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import loading
from scheduler_service.store.records import (
    daemons,
    decision_list,
    decisions,
    host_documents,
    shadow,
)
from scheduler_service.store.writing import zones

HostCriteria = host_listing.HostCriteria
# How long a statement may take, in seconds: who looks does not wait longer.
READ_S = 5.0
# Of a host, the newest.
_MOST_CLAIMS = 500
_MOST_FLAVORS = 8


class Listings:
    """Rows as the commands of the same names print them.

    :param newest: gives copies of the host table
    :param pipeline: returns that of the engine, whose options count
    """

    def __init__(
        self,
        store: Store,
        newest: NewestCopy,
        pipeline: Callable[[], HostPipeline],
    ) -> None:
        self._store = store
        self._newest = newest
        self._pipeline = pipeline

    @property
    def settings(self) -> Settings:
        """What the options say of hosts."""
        return self._pipeline().settings

    def table(self) -> HostTable:
        """Return a copy of the host table, with a memo for the caller alone.

        :raises ServiceBusy: the hosts are not loaded yet
        """
        table = self._newest.table()
        if table is None:
            raise errors.ServiceBusy('The hosts are not loaded yet')
        return table

    def hosts(
        self, criteria: HostCriteria, limit: int
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Return hosts by their names, and what is wrong with the criteria.

        :param limit: the largest number
        """
        table = self.table()
        found = host_listing.rows(table, criteria, self.settings)
        rows = list(itertools.islice(found, limit))
        return rows, self._remarks(table, rows, criteria)

    def host(self, name: str) -> dict[str, Any]:
        """Return all about a service host.

        :return: the documents of its ``nodes``, the newest ``claims`` on it,
            and :meth:`in_memory`
        :raises HostNotFound: it does not exist
        :raises StoreUnavailable: the database does not answer
        """
        with self._store.reading(READ_S) as conn:
            nodes = host_documents.of_host(conn, name)
            claims = claim_queries.listing(conn, name, limit=_MOST_CLAIMS)
        nodes = host_listing.placed(self.table(), self.settings, nodes)
        return {'nodes': nodes, 'claims': claims, **self.in_memory(name)}

    def in_memory(self, name: str) -> dict[str, Any]:
        """Return what is known of a service host without the database.

        :return: its ``resources``, ``aggregates`` and ``instances``
        """
        table = self.table()
        aggregates = host_listing.aggregates_of(table, name)
        return {
            'resources': host_listing.left(table, self.settings, name),
            'aggregates': [each.name for each in aggregates],
            'instances': sorted(
                each.uuid for each in table.instances.on_host(name)
            ),
        }

    def zones(
        self, zone: str | None
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Return how full zones are, and what is wrong with the name."""
        table, settings = self.table(), self.settings
        rows = headroom.zone_rows(table, settings, zone)
        return rows, self._remarks(table, rows, HostCriteria(zone))

    def fits(
        self, request: Request, by: str
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Return how many instances of a request fit where.

        :param by: ``zone``, ``aggregate`` or ``host``
        :raises FilterFault: a filter failed
        """
        table = self.table()
        pipeline = self._pipeline().for_another_thread()
        found = headroom.fits(pipeline, table, request.with_ids(), by)
        rows = [place.row(by) for place in found]
        criteria = HostCriteria(request.availability_zone)
        return rows, self._remarks(table, rows, criteria)

    def _remarks(
        self, table: HostTable, rows: list[Any], criteria: HostCriteria
    ) -> list[str]:
        wrong = host_listing.remarks(table, criteria, self.settings)
        return [] if rows else list(wrong)

    def daemons(self) -> list[dict[str, Any]]:
        """Return the daemons that share the store, by their names.

        :raises StoreUnavailable: the database does not answer
        """
        with self._store.reading(READ_S) as conn:
            return daemons.rows(conn)

    def shadow(self, since: Moment) -> dict[str, Any]:
        """Return how a shadow's decisions compare: ``records.shadow:report``.

        :raises StoreUnavailable: the database does not answer
        """
        with self._store.reading(READ_S) as conn:
            return shadow.report(conn, since)

    def overview(self) -> dict[str, Any]:
        """Return what the store says of the last hour, in short.

        :return: ``refusals`` by filter, most first; ``daemons``; the
            ``oldest`` claim without confirmation; numbers of ``dns_zones``
            and ``pools``
        :raises StoreUnavailable: the database does not answer
        """
        with self._store.reading(READ_S) as conn:
            oldest = claim_queries.listing(
                conn, state='claimed', limit=1, oldest=True
            )
            return {
                'refusals': decision_list.refusals(conn, timedelta(hours=1)),
                'daemons': daemons.rows(conn),
                'oldest': oldest[0] if oldest else None,
                'dns_zones': zones.count(conn),
                'pools': len(loading.pools(conn)),
            }

    def flavors(self) -> list[tuple[Flavor, int]]:
        """Return the flavors requested most in the last day, and how often.

        :raises StoreUnavailable: the database does not answer
        """
        with self._store.reading(READ_S) as conn:
            return decisions.flavors(conn, timedelta(days=1), _MOST_FLAVORS)

    def pools(self) -> list[dict[str, Any]]:
        """Return the pools by their names, as ``pool list`` does."""
        with self._store.reading(READ_S) as conn:
            pools = loading.pools(conn).values()
        return [msgspec.structs.asdict(pool) for pool in pools]

    def dns_zones(self) -> list[dict[str, Any]]:
        """Return DNS zones with their pools, as ``zone list`` does."""
        with self._store.reading(READ_S) as conn:
            return [zone._asdict() for zone in zones.listing(conn)]
