"""Has a running engine decide by another plan, from one batch to the next.

Any thread may check a plan; the engine's thread takes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future

from scheduler_service.engine.decision_log import DecisionLog
from scheduler_service.engine.decision_recorder import DecisionRecorder
from scheduler_service.engine.health import Health
from scheduler_service.engine.host_scheduler import HostScheduler
from scheduler_service.engine.host_state_writer import (
    HostStateWriter,
    HostStateWriterOptions,
)
from scheduler_service.engine.loop import EngineLoop
from scheduler_service.engine.outcomes import Outcomes
from scheduler_service.engine.plan import Plan
from scheduler_service.engine.ports import Extenders
from scheduler_service.engine.quarantine import Quarantine
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.engine.snapshot_cache import SnapshotCache
from scheduler_service.engine.zone_scheduler import ZoneScheduler


@dataclasses.dataclass(frozen=True, slots=True)
class Reconfigurer:
    """The parts of an engine that a plan has a say in."""

    queue: RequestQueue
    loop: EngineLoop
    hosts: HostScheduler
    zones: ZoneScheduler
    snapshots: SnapshotCache
    outcomes: Outcomes
    recorder: DecisionRecorder
    decision_log: DecisionLog
    host_state_writer: HostStateWriter
    quarantine: Quarantine
    health: Health

    def check(self, plan: Plan) -> Callable[[], Future[None]]:
        """Check what a plan needs beside itself; return what takes it.

        That function returns the future of the moment from which requests
        are decided by the plan.

        :raises ConfigurationError: TLS material of an extender does not load
        """
        asking = self.extenders(plan)
        return lambda: self.loop.between_batches(
            lambda: self._take(plan, asking)
        )

    def extenders(self, plan: Plan) -> Extenders | None:
        """Return what asks the extenders of a plan; None: it has none.

        :raises ConfigurationError: their TLS material does not load
        """
        if plan.extenders is None:
            return None
        return plan.extenders(
            plan.hosts,
            self.health,
            lambda job: self.queue.requeue([job]),
            self.hosts.replies.refuse,
        )

    def _take(self, plan: Plan, asking: Extenders | None) -> None:
        options, store = plan.options, self.snapshots.store
        self.hosts.use(plan.hosts, options.claim_retries, asking)
        self.zones.pipeline = plan.pools
        self.loop.options = options
        self.queue.size = options.request_queue_size
        self.snapshots.max_age = options.snapshot_max_age
        self.snapshots.forget()
        self.outcomes.retention = options.outcome_retention
        self.decision_log.enabled = options.log_decisions
        self.recorder.keep = options.decisions_kept
        self.recorder.max_age = options.decisions_max_age
        self.recorder.outcome_retention = options.outcome_retention
        self.host_state_writer.options = HostStateWriterOptions(
            options.service_down_time, options.claim_timeout
        )
        if plan.timeouts != store.timeouts:
            store.use_timeouts(plan.timeouts)
            self.snapshots.drop()
