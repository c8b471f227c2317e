"""What is said of stored hosts for pods, remembered while they stay the same.

A kube-scheduler asks about one pod after the other, many of which ask for
the same. :class:`StoredHosts` belongs to the threads that hold the
evaluator's lock.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.engine.table_copies import TableCopier, TableCopy
from scheduler_service.kube.pod_requests import Asked
from scheduler_service.pipeline import HostPipeline
from scheduler_service.pipeline.evaluation import Evaluation

# A copy that was made in the middle of a change may lack a part of it, so it
# is compared with another one after this time.
_OLDEST_S = 1.0
_MOST = 1024


@dataclasses.dataclass(slots=True)
class _Version:
    """What a table looks like follows from.

    :ivar position: of the next change in *changes*
    """

    snapshot: Snapshot
    changes: Any
    position: int
    settings: Any

    def is_same(self, other: _Version) -> bool:
        """Whether nothing was changed or replaced between the two."""
        return (
            self.snapshot is other.snapshot
            and self.changes is other.changes
            and self.position == other.position
            and self.settings is other.settings
        )


@dataclasses.dataclass(slots=True)
class _Known:
    """A copy of a table, and what was asked about it.

    :ivar until: monotonic time from which on it is not used any more
    """

    version: _Version
    copy: TableCopy
    until: float
    evaluations: dict[str, Evaluation]


class StoredHosts:
    """The newest host table, and evaluations of it by what pods ask for.

    :param snapshot: gives the newest snapshot, None before the first
    """

    def __init__(
        self,
        pipeline: HostPipeline,
        snapshot: Callable[[], Snapshot | None],
    ) -> None:
        self._pipeline = pipeline
        self._snapshot = snapshot
        self._copier = TableCopier()
        self._known: _Known | None = None

    def use(self, pipeline: HostPipeline) -> None:
        """Judge by another pipeline, and forget what was said by this one."""
        self._pipeline = pipeline
        self._copier.forget()
        self._known = None

    def newest(self) -> TableCopy | None:
        """Return a copy of the newest table; None if there is none yet."""
        snapshot = self._snapshot()
        if snapshot is None:
            return None
        changes = snapshot.hosts.load.changes
        version = _Version(
            snapshot, changes, changes.end, self._pipeline.settings
        )
        known, now = self._known, time.monotonic()
        is_same = known is not None and version.is_same(known.version)
        if known is not None and is_same and now < known.until:
            return known.copy
        copy = self._copier.copy(snapshot.hosts)
        if known is not None and is_same and copy.is_same(known.copy):
            # What was said of the hosts still holds.
            known.until = now + _OLDEST_S
            return known.copy
        self._known = _Known(version, copy, now + _OLDEST_S, {})
        return copy

    def evaluation(self, asked: Asked) -> Evaluation:
        """Return what is said for a pod of the table returned last."""
        assert self._known is not None
        table, evaluations = self._known.copy.table, self._known.evaluations
        if asked.key is None:
            return self._pipeline.evaluate(table, asked.request)
        evaluation = evaluations.get(asked.key)
        if evaluation is None:
            if len(evaluations) >= _MOST:
                evaluations.clear()
            evaluation = self._pipeline.evaluate(table, asked.request)
            evaluations[asked.key] = evaluation
        return evaluation
