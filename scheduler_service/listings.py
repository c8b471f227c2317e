"""Rows of lists: what commands print, for ``/v1`` and pages.

Any thread may call it. Hosts and zones are those of a copy of the engine's
table, so they are there while the database is away; the rest is read from it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.engine import headroom, host_listing
from scheduler_service.engine.newest_copy import NewestCopy
from scheduler_service.model import Request
from scheduler_service.pipeline import HostPipeline
from scheduler_service.store.connection import Store
from scheduler_service.store.records import daemons, host_documents

HostCriteria = host_listing.HostCriteria


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

        :param limit: at most so many
        """
        table, settings = self.table(), self._pipeline().settings
        found = host_listing.rows(table, criteria, settings)
        rows = list(itertools.islice(found, limit))
        default = settings.default_availability_zone
        return rows, [] if rows else list(
            host_listing.remarks(table, criteria, default)
        )

    def host(self, name: str) -> list[dict[str, Any]]:
        """Return the documents of a service host's nodes, from the store.

        :raises HostNotFound: it does not exist
        :raises StoreUnavailable: the database does not answer
        """
        with self._store.reading() as conn:
            return host_documents.of_host(conn, name)

    def zones(
        self, zone: str | None
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Return how full zones are, and what is wrong with the name."""
        table, settings = self.table(), self._pipeline().settings
        rows = headroom.zone_rows(table, settings, zone)
        return rows, self._unknown_zone(table, zone, rows)

    def fits(
        self, request: Request, by: str
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Return how many instances of a request fit where.

        :param by: ``zone`` or ``host``
        :raises FilterFault: a filter failed
        """
        table = self.table()
        pipeline = self._pipeline().for_another_thread()
        default = pipeline.settings.default_availability_zone
        found = headroom.fits(
            pipeline, table, request.with_ids(), default, by == 'host'
        )
        rows = [place.row(by) for place in found]
        zone = request.availability_zone
        return rows, self._unknown_zone(table, zone, rows)

    def _unknown_zone(
        self, table: HostTable, zone: str | None, rows: list[Any]
    ) -> list[str]:
        default = self._pipeline().settings.default_availability_zone
        criteria = HostCriteria(zone)
        return (
            []
            if rows
            else list(host_listing.remarks(table, criteria, default))
        )

    def daemons(self) -> list[dict[str, Any]]:
        """Return the daemons that share the store, by their names.

        :raises StoreUnavailable: the database does not answer
        """
        with self._store.reading() as conn:
            return daemons.rows(conn)
