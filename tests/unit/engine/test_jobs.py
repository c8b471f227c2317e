"""Jobs, and who may process them."""

import time

import pytest

from scheduler_service.engine.jobs import Job
from scheduler_service.engine.messages import DeliveredMessage


def test_job_keeps_its_first_outcome_when_it_gets_another():
    job = Job()
    job.finish('first')
    job.finish('second')
    job.fail(RuntimeError('late'))
    assert job.future.result(0) == 'first'


@pytest.mark.parametrize(
    ('message', 'waited_s', 'looked_up_s', 'contested'),
    [
        (DeliveredMessage(), 100.0, 100.0, False),
        (DeliveredMessage('m'), 1.0, 1.0, False),
        (DeliveredMessage('m', redelivered=True), 1.0, 1.0, True),
        (DeliveredMessage('m'), 10.0, 10.0, True),
        # Whoever looked it up a moment ago need not do so again.
        (DeliveredMessage('m'), 10.0, 1.0, False),
        (DeliveredMessage('m', redelivered=True), 10.0, 1.0, True),
        (DeliveredMessage('m', is_lost=lambda: True), 1.0, 1.0, True),
    ],
)
def test_job_is_contested_when_another_daemon_may_have_its_message(
    message, waited_s, looked_up_s, contested
):
    now = time.monotonic()
    job = Job(
        message=message,
        queued_at=now - waited_s,
        looked_up_at=now - looked_up_s,
    )
    assert job.contested is contested
