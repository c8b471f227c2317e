"""ImagePropertiesWeigher."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import EACH_TIME, Key
from scheduler_service.model import Request
from scheduler_service.model.image_properties import KNOWN
from scheduler_service.settings import Settings, ratios
from scheduler_service.weighers.base import Rows, Weigher


class ImagePropertiesWeigher(Weigher):
    """Prefers hosts whose instances have images of like properties.

    Counts, over the instances of a host, the properties that the image to
    boot has with the same value; with ``image_props_weight_setting`` those
    listed alone, each by its ratio.
    """

    multiplier_option = 'image_props_weight_multiplier'

    def weigh(
        self,
        table: HostTable,
        rows: Rows,
        request: Request,
        settings: Settings,
    ) -> Floats | None:
        """Visit the instances, not the hosts."""
        if settings.image_props_weight_multiplier == 0.0:
            return None
        wanted = {
            (key, str(value))
            for key, value in request.image_properties.items()
            if key in KNOWN
        }
        if not wanted:
            return None
        listed = dict(ratios(settings.image_props_weight_setting))
        sums: dict[str, float] = {}
        for one in table.instances:
            alike = one.image & wanted
            if alike:
                worth = sum(
                    listed.get(key, 0.0) if listed else 1.0 for key, _ in alike
                )
                sums[one.host] = sums.get(one.host, 0.0) + worth
        weights = np.zeros(len(table))
        for host, worth in sums.items():
            weights[table.rows_of_host(host)] = worth
        chosen: Floats = weights[rows]
        return chosen

    def weight_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return None where no image or no multiplier is set."""
        if settings.image_props_weight_multiplier == 0.0:
            return None
        return EACH_TIME if request.image_properties else None
