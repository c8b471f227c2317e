"""The weigher ImagePropertiesWeigher."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import EACH_TIME, Key
from scheduler_service.model import Request
from scheduler_service.model.image_properties import KNOWN
from scheduler_service.settings import Settings, ratios
from scheduler_service.weighers.base import Weigher


class ImagePropertiesWeigher(Weigher):
    """Prefers hosts whose instances have images with the same properties.

    For each instance of a host, counts the properties that its image and the
    requested image have with the same value. With
    ``image_props_weight_setting`` only the listed properties count, each
    times its ratio. Only properties that compute services know are compared.
    """

    multiplier_option = 'image_props_weight_multiplier'

    def weights(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Floats | None:
        # An option of 0, the default, spares the loop over all instances,
        # even where aggregates set a multiplier of their own.
        if settings.image_props_weight_multiplier == 0.0:
            return None
        requested = {
            (key, str(value))
            for key, value in request.image_properties.items()
            if key in KNOWN
        }
        if not requested:
            return None
        factors = dict(ratios(settings.image_props_weight_setting))
        sums: dict[str, float] = {}
        for instance in table.instances:
            common = instance.image & requested
            if common:
                sums[instance.host] = sums.get(instance.host, 0.0) + sum(
                    factors.get(key, 0.0) if factors else 1.0
                    for key, _ in common
                )
        weights = np.zeros(len(table))
        for host, weight in sums.items():
            weights[table.rows_of_host(host)] = weight
        return weights

    def weight_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        if settings.image_props_weight_multiplier == 0.0:
            return None
        return EACH_TIME if request.image_properties else None
