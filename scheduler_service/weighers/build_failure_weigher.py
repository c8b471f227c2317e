"""The weigher BuildFailureWeigher."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.model import Request
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Rows, Weigher


class BuildFailureWeigher(Weigher):
    """Avoids hosts with failed builds.

    Failures are normalised like any weight, so the host with the most of
    them loses the whole multiplier, however few they are.
    """

    multiplier_option = 'build_failure_weight_multiplier'
    sign = -1.0

    def weigh(
        self,
        table: HostTable,
        rows: Rows,
        request: Request,
        settings: Settings,
    ) -> Floats | None:
        """Return the number of failed builds."""
        weights: Floats = table.number('failed_builds')[rows] * 1.0
        return weights

    def weight_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        return ()
