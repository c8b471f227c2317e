"""Host filters on flavors: of a host's instances, and of its aggregates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.columns.load import Formula
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import Comparison, ComparisonFilter
from scheduler_service.filters.hosts.aggregate_filter import (
    AggregateFilter,
    Metadata,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class TypeAffinityFilter(ComparisonFilter):
    """Passes hosts whose instances all have the same flavor as the request.

    Flavors are compared by their ids. A host without instances passes.
    """

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        flavors = flavor_column(table)
        return (
            Comparison(
                flavors.values, flavors.has_no_other, request.flavor.flavorid
            ),
        )

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        instances = table.instances.on_host(table.host_at(row))
        flavors = sorted({str(instance.flavorid) for instance in instances})
        return (
            f'the host has instances of the flavors {", ".join(flavors)}; the '
            f'request has {request.flavor.flavorid}'
        )


_NONE, _SEVERAL = -1, -2
FlavorId = str | None


class FlavorColumn(NamedTuple):
    """The flavor of each host's instances, where all have the same.

    It is kept up to date as instances come and go.

    :ivar values: int64[n], numbers of flavors, or negative where a host has
        no instances or instances of several flavors
    :ivar numbers: flavor id -> number
    """

    values: npt.NDArray[np.int64]
    numbers: dict[FlavorId, int]

    def has_no_other(self, values: Any, flavor_id: FlavorId) -> Mask:
        """Return whether hosts have no instances but of one flavor.

        :param values: those of some rows, or of all
        """
        mask: Mask = values == _NONE
        number = self.numbers.get(flavor_id)
        if number is not None:
            mask |= values == number
        return mask


def flavor_column(table: HostTable) -> FlavorColumn:
    """Return the column of a table."""
    numbers: dict[FlavorId, int] = table.load.memoize('flavor numbers', dict)
    values = table.load_column(
        'flavor of instances', 'instances', lambda: _formula(table, numbers)
    )
    return FlavorColumn(values, numbers)


def _formula(table: HostTable, numbers: dict[FlavorId, int]) -> Formula:
    hosts, instances = table.coded['host'], table.instances

    def number_of(placed: Iterable[PlacedInstance]) -> int:
        flavors = {instance.flavorid for instance in placed}
        if len(flavors) > 1:
            return _SEVERAL
        for flavor_id in flavors:
            return numbers.setdefault(flavor_id, len(numbers))
        return _NONE

    def formula(rows: Any) -> Any:
        if isinstance(rows, slice):
            rows = np.arange(len(table))
        return [
            number_of(instances.on_host(hosts.at(row)))
            for row in np.atleast_1d(rows).tolist()
        ]

    return formula


METADATA_KEY = 'instance_type'


class AggregateTypeAffinityFilter(AggregateFilter):
    """Reserves the hosts of an aggregate for some flavors, by name.

    The names are the values of the metadata key ``instance_type``, split at
    commas. A host without the key is open to every flavor.
    """

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        if not table.any_aggregate_has(METADATA_KEY):
            return None
        return (request.flavor.name,)

    def mismatch(self, metadata: Metadata, key: tuple[str | None]) -> str:
        names = metadata.get(METADATA_KEY)
        if not names or key[0] in names:
            return ''
        flavors = ', '.join(sorted(names))
        return (
            f'the host is reserved for the flavors {flavors}; the request has '
            f'{key[0]}'
        )
