"""Which nodes a filter rejects for a pod, and why, in words.

Used by the threads that hold the evaluator's lock.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.capacity import CapacityFilter, CountFilter
from scheduler_service.kube.pod_load import NodeRows
from scheduler_service.pipeline.evaluation import Evaluation
from scheduler_service.settings import Settings

_MAX_REASON_LENGTH = 1000
# Reasons are computed for so many nodes that one filter rejects; the others
# get the last of these.
_MAX_REASONS = 200
# Filters that look at load, which changes as pods come and go.
_MAY_PASS_LATER = frozenset(
    (
        'RetryFilter',
        'MetricsFilter',
        'ServerGroupAffinityFilter',
        'ServerGroupAntiAffinityFilter',
        'GroupAffinityFilter',
        'GroupAntiAffinityFilter',
        'DifferentHostFilter',
        'SameHostFilter',
        'TypeAffinityFilter',
    )
)


class Rejections:
    """The nodes of a call that do not pass.

    :ivar failed: node -> reason, for those that may pass later
    :ivar never: node -> reason, for those that evicting pods cannot help
    """

    __slots__ = ('failed', 'never')

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}
        self.never: dict[str, str] = {}

    def add(
        self,
        evaluation: Evaluation,
        sent: NodeRows,
        names: Sequence[str],
        settings: Settings,
    ) -> None:
        """Add the nodes of one table that some filter rejects.

        :param names: of the nodes
        :raises FilterFault: a filter failed
        """
        if evaluation.do_pass(sent.rows):
            return
        first, filters = evaluation.first_rejecting()
        numbers = first.take(sent.rows)
        for number in np.unique(numbers[numbers >= 0]).tolist():
            host_filter = filters[number]
            rejected = np.flatnonzero(numbers == number).tolist()
            rows = sent.rows[rejected[:_MAX_REASONS]].tolist()
            reasons = _reasons(evaluation, sent, host_filter, rows, settings)
            more = len(rejected) - len(reasons)
            reasons += [reasons[-1]] * more
            later = _may_pass_later(host_filter)
            into = self.failed if later else self.never
            into.update(
                zip([names[at] for at in rejected], reasons, strict=True)
            )

    def passed(self, names: list[str]) -> list[str]:
        """Return those of the nodes that are not among these."""
        if not (self.failed or self.never):
            return names
        rejected = self.failed.keys() | self.never.keys()
        return [name for name in names if name not in rejected]


def _reasons(
    evaluation: Evaluation,
    sent: NodeRows,
    host_filter: HostFilter,
    rows: Sequence[int],
    settings: Settings,
) -> list[str]:
    """Return why a filter rejects each of some nodes."""
    known, name = evaluation.reasons, host_filter.name
    reasons = []
    for row in rows:
        text = known.get((name, row))
        if text is None:
            reason = host_filter.reason(
                sent.table, row, evaluation.request, settings
            )
            text = f'{name}: {reason}'[:_MAX_REASON_LENGTH]
            text = known[name, row] = text.replace('%', ' percent')
        reasons.append(text)
    return reasons


def _may_pass_later(host_filter: HostFilter) -> bool:
    """Whether a filter looks at load, and evicting pods may help."""
    return (
        isinstance(host_filter, CapacityFilter | CountFilter)
        or host_filter.name in _MAY_PASS_LATER
    )
