"""Hosts that fall silent."""

import time
from typing import Any

from scheduler_service.factory import build
from tests.support.documents import CONTEXT, SMALL
from tests.support.services import new_conf
from tests.support.stores import stored_host
from tests.support.waiting import wait_until


def test_host_is_down_for_all_daemons_when_it_falls_silent(make_service):
    """Two daemons on one store; the second hears nothing itself."""
    service = make_service(scheduler__service_down_time=1.5)
    conf = new_conf(
        database__connection=service.store.engine.url.render_as_string(
            hide_password=False
        ),
        scheduler__service_down_time=1.5,
    )
    other = build(conf, service.store)
    other.start()

    def beat(*hosts: str) -> None:
        service.client.call(CONTEXT, 'heartbeat', hosts=list(hosts))

    def passed(scheduler: Any) -> int:
        report = scheduler.explain(
            _request({'flavor': SMALL})
        ).result(10)  # fmt: skip
        return report['passed']

    def _request(document: Any) -> Any:
        from scheduler_service.model import documents

        return documents.request(document)

    try:
        beat('compute-1', 'compute-2')
        deadline = time.monotonic() + 8
        while stored_host(service.store).state == 'up':
            assert time.monotonic() < deadline
            beat('compute-2')
            time.sleep(0.1)
        both = [service.daemon.scheduler, other]
        wait_until(lambda: [passed(one) for one in both] == [3, 3], 1.0)
        # Hosts that never sent any are what their document says.
        assert stored_host(service.store, 'compute-3').state == 'up'
        beat('compute-1', 'compute-2')
        wait_until(lambda: stored_host(service.store).state == 'up', 2.0)
        wait_until(lambda: [passed(one) for one in both] == [4, 4], 1.0)
    finally:
        other.stop()


def test_hosts_stay_up_when_the_daemon_could_not_listen(make_service):
    service = make_service(scheduler__service_down_time=1.0)
    service.client.call(CONTEXT, 'heartbeat', hosts=['compute-1'])
    wait_until(
        lambda: (
            service.daemon.scheduler.host_state_writer._buffer.heartbeats
            == set()
        )
    )
    for _ in range(20):
        service.daemon.scheduler.host_state_writer.reset_liveness()
        time.sleep(0.1)
    assert stored_host(service.store).state == 'up'
    wait_until(lambda: stored_host(service.store).state == 'down', 5.0)
