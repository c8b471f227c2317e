"""The decision itself: filters in order, weights, the choice, the reasons."""

from scheduler_service.pipeline.hosts import HostPipeline
from scheduler_service.pipeline.pools import PoolChoice, PoolPipeline
from scheduler_service.pipeline.selection import (
    Assignment,
    Bonuses,
    ScheduleResult,
)

__all__ = [
    'Assignment',
    'Bonuses',
    'HostPipeline',
    'PoolChoice',
    'PoolPipeline',
    'ScheduleResult',
]
