"""The decision itself: filters in order, weights, the choice, the reasons."""

from scheduler_service.pipeline.hosts import Choice, HostPipeline, Picked
from scheduler_service.pipeline.pools import PoolChoice, PoolPipeline

__all__ = ['Choice', 'HostPipeline', 'Picked', 'PoolChoice', 'PoolPipeline']
