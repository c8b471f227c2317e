"""Many callers and several daemons share what there is."""

import threading

import pytest

from scheduler_service import errors
from tests.support.documents import CONTEXT
from tests.support.services import hosts_of, new_conf


@pytest.mark.db
@pytest.mark.broker
def test_hosts_are_filled_exactly_when_many_call_at_once(make_service):
    service = make_service('rabbit', 'postgresql')
    placed, refused = [], []

    def ask():
        for _ in range(10):
            try:
                answer = service.client.select_destinations(
                    CONTEXT, {'flavor': {'vcpus': 1, 'memory_mb': 500}}
                )
                placed.extend(hosts_of(answer))
            except errors.NoValidHost as error:
                refused.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # 8193 to 8196 MB hold 16 of 500 each.
    assert len(placed) == 64
    assert len(refused) == 16
    assert all(placed.count(host) == 16 for host in set(placed))


def test_nothing_is_promised_twice_when_two_daemons_share_a_store(
    make_service, make_store
):
    from scheduler_service.cmd.daemon import Daemon

    first = make_service()
    conf = new_conf(
        database__connection=str(first.store.engine.url),
        scheduler__server='second',
    )
    second = Daemon(conf, first.url)
    second.start()
    try:
        placed = []

        def ask():
            for _ in range(8):
                try:
                    answer = first.client.select_destinations(
                        CONTEXT, {'flavor': {'memory_mb': 1000}}
                    )
                    placed.extend(hosts_of(answer))
                except errors.NoValidHost:
                    continue

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(placed) == 32
        assert all(placed.count(host) == 8 for host in set(placed))
        both = (first.daemon.scheduler.status(), second.scheduler.status())
        assert all(one['requests'] for one in both)
    finally:
        second.stop()
