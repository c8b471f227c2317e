"""The hosts and pools that a decision reads, at one moment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from scheduler_service.columns.table import HostTable
from scheduler_service.model import Pool


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """Hosts and pools as of one revision of the store.

    :ivar hosts: the host table
    :ivar pools: pools by id, in the order of their names
    :ivar revision: number of the last change that is included
    :ivar lineage: the token of that change; None where the store had none
    """

    hosts: HostTable
    pools: Mapping[str, Pool]
    revision: int
    lineage: str | None = None
