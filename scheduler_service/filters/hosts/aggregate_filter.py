"""Host filters on the metadata of a host's aggregates."""

from __future__ import annotations

import abc
import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scheduler_service import specops
from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import REQUIREMENT, UNREADABLE, KeyFilter
from scheduler_service.model import Request
from scheduler_service.model.image_properties import KNOWN
from scheduler_service.model.requirements.specs import reading, spec_path
from scheduler_service.settings import Settings

# How many names, and how many characters of them, are compared at most.
_COMPARED = 200
#: Key -> values of all aggregates of a host, split at commas.
Metadata = Mapping[str, frozenset[str]]


class AggregateFilter(KeyFilter):
    """Base of filters that evaluate each distinct set of aggregates once.

    Override :meth:`mismatch`, and :meth:`mask_key` with what it needs.
    """

    once = True

    @abc.abstractmethod
    def mismatch(self, metadata: Metadata, key: Any) -> str:
        """Return why hosts with this metadata fail; empty: they pass.

        :param key: the result of :meth:`mask_key`
        """

    def passing(self, table: HostTable, key: Any) -> Mask:
        return table.by_aggregate_ids(
            lambda ids: not self.mismatch(table.split_metadata(ids), key)
        )

    def failure(self, table: HostTable, row: int, key: Any) -> str:
        ids = table.coded['aggregate_set'].at(row)
        return self.mismatch(table.split_metadata(ids), key)


class AvailabilityZoneFilter(AggregateFilter):
    """Passes hosts in the requested availability zone.

    The zones of a host are the ``availability_zone`` metadata of its
    aggregates, split at commas. A host without any is in
    ``default_availability_zone``. The zone of a request counts always, also
    where this filter is not enabled; for requests of the compute service see
    ``map_az_to_placement_aggregate``.
    """

    by_name = True

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        zone = request.availability_zone
        if not zone or request.lenient:
            return None
        return zone, settings.default_availability_zone

    def mismatch(self, metadata: Metadata, key: tuple[str, str]) -> str:
        zone, default = key
        zones = metadata.get('availability_zone') or {default}
        if zone in zones:
            return ''
        names = ', '.join(sorted(zones))
        return f'zone {zone} requested, the host is in {names}'


def unknown_zone(
    table: HostTable, request: Request, settings: Settings
) -> str:
    """Return a sentence where there is no such zone; empty: there is."""
    zone, default = (
        request.availability_zone,
        settings.default_availability_zone,
    )

    def work() -> list[str]:
        every = frozenset(table.topology.aggregates)
        zones = table.split_metadata(every).get('availability_zone', ())
        return sorted({default, *zones})

    known: list[str] = table.topology.memoize(('zone names', default), work)
    if not zone or request.lenient or zone in known:
        return ''
    # To compare long names, or all of many, would take long.
    text = zone[:_COMPARED]
    among = sorted(known, key=lambda name: abs(len(name) - len(text)))
    (nearest,) = difflib.get_close_matches(text, among[:_COMPARED], 1, 0.0)
    return (
        f'There is no availability zone {text}, the nearest name is '
        f'{nearest[:_COMPARED]}'
    )


class AggregateImagePropertiesIsolation(AggregateFilter):
    """Keeps images with other properties off the hosts of an aggregate.

    Each metadata key of a host's aggregates that is also a property of the
    image has to have the image's value among its values, which are split at
    commas. An image without the property may go to any host. Only properties
    that compute services know are compared, and with
    ``aggregate_image_properties_isolation_namespace`` only those whose name
    starts with the namespace and the separator.
    """

    rebuild = True

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        namespace = settings.aggregate_image_properties_isolation_namespace
        separator = settings.aggregate_image_properties_isolation_separator
        prefix = f'{namespace}{separator}' if namespace else ''
        properties = tuple(
            (key, str(value))
            for key, value in request.image_properties.items()
            if value and key in KNOWN and key.startswith(prefix)
        )
        return properties or None

    def mismatch(
        self, metadata: Metadata, key: tuple[tuple[str, str], ...]
    ) -> str:
        for name, value in key:
            allowed = metadata.get(name)
            if allowed is not None and value not in allowed:
                return (
                    f'the image has {name}={value}, aggregate metadata allows '
                    f'{name}={",".join(sorted(allowed))}'
                )
        return ''


class AggregateInstanceExtraSpecsFilter(AggregateFilter):
    """Passes hosts whose aggregates satisfy every extra spec of the flavor.

    Extra specs without a scope count, and those with the scope
    ``aggregate_instance_extra_specs:``; other scopes are ignored. The key has
    to be in the metadata of one of the host's aggregates, and one of its
    values, which are split at commas, has to match. A value that is no number
    does not match where numbers are compared. Requirements use the operators
    of extra specs.
    """

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        specs = []
        for key, requirement in request.flavor.extra_specs.items():
            scope, colon, name = key.partition(':')
            if not colon:
                specs.append((key, requirement))
            elif scope == specops.AGGREGATE_SCOPE:
                specs.append((name, requirement))
        return tuple(specs) or None

    def mismatch(
        self, metadata: Metadata, key: tuple[tuple[str, str], ...]
    ) -> str:
        for name, requirement in key:
            required = f'the flavor requires {name}={requirement}'
            values = metadata.get(name)
            if values is None:
                return (
                    f'{required}, no aggregate of the host has the metadata '
                    'key'
                )
            try:
                with reading(spec_path(name), REQUIREMENT, requirement):
                    matches = any_matches(
                        (value, requirement) for value in sorted(values)
                    )
            except specops.NotComparableError as fault:
                return f'{UNREADABLE}{required}, aggregate metadata: {fault}'
            if not matches:
                return (
                    f'{required}, aggregate metadata has '
                    f'{name}={",".join(sorted(values))}'
                )
        return ''


def any_matches(
    pairs: Iterable[tuple[str, str]],
    matches: Callable[[str, str], bool] = specops.match,
) -> bool:
    """Return whether any value matches its requirement.

    :param pairs: (value, requirement)
    :raises NotComparableError: none matches, and a value is no number where
        numbers are compared
    :raises ValueError: a requirement is not valid
    """
    error: specops.NotComparableError | None = None
    for value, requirement in pairs:
        try:
            if matches(value, requirement):
                return True
        except specops.NotComparableError as caught:
            error = caught
    if error is not None:
        raise error
    return False
