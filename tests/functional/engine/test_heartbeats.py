"""Hosts that fall silent."""

import time

from scheduler_service.factory import build
from scheduler_service.model import documents
from tests.support.documents import CONTEXT, SMALL
from tests.support.services import new_conf
from tests.support.stores import stored_host
from tests.support.waiting import LIMIT_S, SLOWNESS, wait_until


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

    def seen(*beating: str) -> tuple[str, int, int]:
        """Return the state of compute-1, and how many pass for each daemon.

        :param beating: hosts that send a heartbeat before
        """
        beat(*beating)
        request = documents.request({'flavor': SMALL})
        first, second = (
            scheduler.explain(request).result(LIMIT_S)['passed']
            for scheduler in (service.daemon.scheduler, other)
        )
        return stored_host(service.store).state, first, second

    try:
        beat('compute-1', 'compute-2')
        wait_until(lambda: seen('compute-2') == ('down', 3, 3))
        # Hosts that never sent any are what their document says.
        assert stored_host(service.store, 'compute-3').state == 'up'
        wait_until(lambda: seen('compute-1', 'compute-2') == ('up', 4, 4))
    finally:
        other.stop()


def test_hosts_stay_up_when_the_daemon_could_not_listen(make_service):
    down_s = 2.0 * SLOWNESS
    service = make_service(scheduler__service_down_time=down_s)
    service.client.call(CONTEXT, 'heartbeat', hosts=['compute-1'])
    wait_until(
        lambda: (
            service.daemon.scheduler.host_state_writer._buffer.heartbeats
            == set()
        )
    )
    for _ in range(40):
        service.daemon.scheduler.host_state_writer.reset_liveness()
        time.sleep(down_s / 20)
    assert stored_host(service.store).state == 'up'
    wait_until(lambda: stored_host(service.store).state == 'down')
