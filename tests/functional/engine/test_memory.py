"""What the engine leaves in memory once requests are answered."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.engine.jobs import Job
from tests.support.documents import CONTEXT

TOO_LARGE = {'flavor': {'memory_mb': 10**7}}
NO_POOL = '00000000-0000-0000-0000-000000000000'


@contextmanager
def garbage() -> Iterator[list[Any]]:
    """Give the list of all that only the garbage collector can free."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_a_refused_request_is_in_no_reference_cycle(make_service):
    """Full collections are minutes apart: refusals would pile up."""
    service = make_service(
        scheduler__batch_size=200,
        pool_scheduler__scheduler_filters=['pool_id_attribute'],
    )
    asked: list[Any] = [{'flavor': {'memory_mb': 1}} for _ in range(80)]
    asked[::4] = [TOO_LARGE] * 20
    with garbage() as found:
        # The queue and threads that wait hold what came last.
        for _ in range(8):
            answers = service.client.schedule_many(
                CONTEXT, [{'select_destinations': one} for one in asked]
            )
            assert sum('error' in answer for answer in answers) == 20
            with pytest.raises(errors.NoValidHost):
                service.client.select_destinations(CONTEXT, TOO_LARGE)
            with pytest.raises(errors.PoolNotFound):
                service.client.schedule_zone(
                    CONTEXT,
                    {'name': 'a.', 'attributes': {'pool_id': NO_POOL}},
                )
        gc.collect()
        assert [one for one in found if isinstance(one, Job)] == []
