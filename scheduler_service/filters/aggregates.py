"""The base class of filters on the metadata of a host's aggregates."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings

#: Key -> values of all aggregates of a host, split at commas.
Metadata = Mapping[str, frozenset[str]]


class AggregateFilter(HostFilter, abc.ABC):
    """Base of filters that evaluate each distinct set of aggregates once.

    Override :meth:`mismatch`, and :meth:`mask_key` with what it needs.
    """

    once = True

    @abc.abstractmethod
    def mismatch(self, metadata: Metadata, key: Any) -> str:
        """Return why hosts with this metadata fail; empty: they pass.

        :param key: the result of :meth:`mask_key`
        """

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Evaluate each distinct set of aggregates once."""
        key = self.mask_key(table, request, settings)
        if key is None:
            return None
        mask: Mask = table.by_aggregate_ids(
            lambda ids: not self.mismatch(table.split_metadata(ids), key)
        )
        return mask

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        ids = table.coded['aggregate_set'].at(row)
        key = self.mask_key(table, request, settings)
        return self.mismatch(table.split_metadata(ids), key)
