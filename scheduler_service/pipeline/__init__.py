"""The decision itself: filters in order, weights, the choice, the reasons."""

from scheduler_service.pipeline.hosts import HostPipeline
from scheduler_service.pipeline.picking import Advice, Choice, Picked
from scheduler_service.pipeline.pools import PoolChoice, PoolPipeline

__all__ = [
    'Advice',
    'Choice',
    'HostPipeline',
    'Picked',
    'PoolChoice',
    'PoolPipeline',
]
