"""Rows of lists: what commands print, for ``/v1`` and pages.

Any thread may call it. Hosts and zones are those of a copy of the engine's
table, so they are there while the database is away; the rest is read from it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.columns.dictionary import Mask
from scheduler_service.engine.newest_copy import NewestCopy
from scheduler_service.model import Flavor, Request
from scheduler_service.moments import Moment
from scheduler_service.pipeline import HostPipeline
from scheduler_service.planning import headroom, host_listing
from scheduler_service.settings import Settings
from scheduler_service.store import clock
from scheduler_service.store.claims import claim_queries
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import loading
from scheduler_service.store.records import (
    daemons,
    decision_list,
    decisions,
    host_reports,
    rates,
    shadow,
)
from scheduler_service.store.writing import zones

HostCriteria = host_listing.HostCriteria
HOST_ORDERS = host_listing.ORDERS
# How long a statement may take, in seconds: who looks does not wait longer.
READ_S = 5.0
# Of a host, the newest.
_MOST_CLAIMS = 500
_MOST_FLAVORS = 10
# Host names that a field offers.
_MOST_NAMES = 1000
_DAY_S = 86_400.0
# Rates and durations of daemons are those of this time, in seconds.
_LATELY_S = 900.0


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
        self, criteria: HostCriteria, limit: int, offset: int = 0
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Return hosts in their order, and what is wrong with the criteria.

        :param limit: the largest number
        :param offset: how many are left out before
        """
        table = self.table()
        found = host_listing.rows(table, criteria, self.settings)
        rows = list(itertools.islice(found, offset, offset + limit))
        return rows, self._remarks(table, rows, criteria)

    def host(self, name: str) -> dict[str, Any]:
        """Return all about a service host.

        :return: the documents of its ``nodes``, the newest ``claims`` on it,
            and :meth:`in_memory`
        :raises HostNotFound: it does not exist
        :raises StoreUnavailable: the database does not answer
        """
        with self._store.reading(READ_S) as conn:
            nodes = host_reports.documents_of(conn, name)
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

    def fitting(self, table: HostTable, request: Request) -> Mask:
        """Return which hosts an instance of a request fits on, bool[n].

        :raises FilterFault: a filter failed
        """
        pipeline = self._pipeline().for_another_thread()
        return headroom.passing(pipeline, table, request.with_ids())

    def names(self) -> dict[str, list[str]]:
        """Return names to choose from: ``zones``, and the first ``hosts``.

        There are none before the hosts are loaded.
        """
        table = self._newest.table()
        if table is None:
            return {'zones': [], 'hosts': []}
        aggregates = table.topology.aggregates.values()
        zones = {*host_listing.zones_of((), self.settings)}
        zones.update(*(aggregate.zones for aggregate in aggregates))
        hosts = heapq.nsmallest(_MOST_NAMES, table.coded['host'].values)
        return {'zones': sorted(zones), 'hosts': hosts}

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
            return daemons.rows(conn, daemons.listing(conn))

    def shadow(self, since: Moment) -> dict[str, Any]:
        """Return how a shadow's decisions compare: ``records.shadow:report``.

        :raises StoreUnavailable: the database does not answer
        """
        with self._store.reading(READ_S) as conn:
            return shadow.report(conn, since)

    def overview(self, places: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Return what the store says of the last day, in short.

        :param places: zones, each with a resource class
        :return: ``refusals`` of the last hour by filter, most first;
            ``daemons``, with ``causes`` of what is degraded and since when,
            whether ``database`` and ``broker`` are away and since when that
            is so, and of the last 15 minutes their ``rate`` a minute and what
            half (``p50_ms``) and 99 % (``p99_ms``) took at most; the
            ``oldest`` claim without confirmation; numbers of ``dns_zones``
            and ``pools``; and of the day until ``now``
            ``rates``, ``events`` and ``trends`` of the places
        :raises StoreUnavailable: the database does not answer
        """
        with self._store.reading(READ_S) as conn:
            now, stored = clock.read(conn), daemons.listing(conn)
            events = [
                *daemons.since(conn, now - _DAY_S), *daemons.lasting(stored)
            ]  # fmt: skip
            events.sort(key=lambda event: float(event['begun_at']))
            rated = rates.between(conn, now - _DAY_S)
            oldest = claim_queries.listing(
                conn, state='claimed', limit=1, oldest=True
            )
            return {
                'refusals': decision_list.refusals(conn, timedelta(hours=1)),
                'daemons': _lately(
                    stored, daemons.rows(conn, stored), now, rated, events
                ),
                'now': now,
                'rates': rated,
                'events': events,
                'trends': rates.trends(conn, places, now - _DAY_S),
                'oldest': oldest[0] if oldest else None,
                'dns_zones': zones.count(conn),
                'pools': len(loading.pools(conn)),
            }

    def rates(
        self, since: Moment, until: Moment | None
    ) -> list[dict[str, Any]]:
        """Return what daemons decided in each minute, oldest first.

        :raises StoreUnavailable: the database does not answer
        """
        with self._store.reading(READ_S) as conn:
            return rates.listing(conn, since, until)

    def asked(self, ids: Sequence[int]) -> dict[int, str]:
        """Return what decisions were asked for, a line each, by their ids.

        :raises StoreUnavailable: the database does not answer
        """
        with self._store.reading(READ_S) as conn:
            return decisions.asked_lines(conn, ids)

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


def _lately(
    stored: Sequence[Mapping[str, Any]],
    listed: Sequence[Mapping[str, Any]],
    now: float,
    rated: Sequence[rates.Rate],
    events: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return the daemons of :meth:`Listings.overview`.

    :param stored: the daemons, as of :func:`daemons.listing`
    :param listed: the same, as of :func:`daemons.rows`
    :param rated: at least of the last 15 minutes
    :param events: that may say when a server was away
    """
    lately: dict[str, rates.Counts] = {}
    for rate in rated:
        if rate.at >= now - _LATELY_S:
            counts = lately.setdefault(rate.daemon, rates.Counts())
            counts.add(rate.counts)
    made = []
    for row, of_daemon in zip(listed, stored, strict=True):
        seen_at, started_at = of_daemon['seen_at'], of_daemon['started_at']
        causes = [(text, seen_at - age) for text, age in of_daemon['degraded']]
        servers = {}
        for server in ('database', 'broker'):
            away = [since for text, since in causes if text.startswith(server)]
            ends = [
                event['ended_at'] or 0.0
                for event in events
                if event['event'] == f'{server} away'
                and event['who'] == row['name']
            ]
            since = min(away) if away else max([started_at, *ends])
            servers[server] = bool(away), since
        counts = lately.get(row['name'], rates.Counts())
        minutes = max(1.0, min(_LATELY_S, now - started_at) / 60)
        figures = {
            'rate': counts.decisions / minutes,
            'p50_ms': counts.quantile(0.5),
            'p99_ms': counts.quantile(0.99),
        }
        made.append({**row, **servers, **figures, 'causes': causes})
    return made
