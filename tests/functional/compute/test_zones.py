"""The zone of a request counts with the shipped filters, whoever asks."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from tests.support import shipped
from tests.support.compute import HOSTS, hosts_of
from tests.support.documents import CONTEXT
from tests.support.waiting import wait_until

import oslo_messaging  # isort: skip

NAMES = [host['host'] for host in HOSTS['hosts']]


@pytest.fixture
def compute(make_compute):
    """A daemon with the shipped filters; the last host alone is in west."""
    zones = {'east': NAMES[:-1], 'west': NAMES[-1:]}
    return make_compute(
        inventory={
            **HOSTS,
            'aggregates': [
                {'id': at, 'name': zone, 'hosts': hosts,
                 'metadata': {'availability_zone': zone}}
                for at, (zone, hosts) in enumerate(zones.items(), 1)
            ],
        },
        filter_scheduler__enabled_filters=shipped.filters(),
    )  # fmt: skip


def own(zone, **fields):
    """Return a request of our own interface."""
    return {
        'flavor': {'vcpus': 1, 'memory_mb': 64},
        'availability_zone': zone,
        **fields,
    }


def placed(compute, request):
    """Return the hosts that our own interface gives, with alternates."""
    answer = compute.service.client.select_destinations(CONTEXT, request)
    (one,) = answer['placements']
    return [each['host'] for each in (one['selected'], *one['alternates'])]


def test_instances_and_their_alternates_are_in_the_zone(compute):
    assert hosts_of(compute.select(availability_zone='west')) == [NAMES[-1:]]
    assert placed(compute, own('west')) == NAMES[-1:]


def test_a_zone_that_no_aggregate_has_restricts_no_compute_service(compute):
    for zone in ('nova', 'wst'):
        (found,) = hosts_of(compute.select(availability_zone=zone))
        assert found

    def queries():
        scheduler = compute.daemon.scheduler
        ids = {each['request_id'] for each in scheduler.decisions(9)}
        return str([scheduler.decision(request_id) for request_id in ids])

    wait_until(lambda: 'no aggregate has the zone wst' in queries())


def test_an_unknown_zone_is_refused_with_the_nearest_name(compute):
    with pytest.raises(errors.NoValidHost, match='nearest name is west'):
        placed(compute, own('wst'))
    # All hosts are in other zones than the default one.
    with pytest.raises(errors.NoValidHost) as caught:
        placed(compute, own('nova'))
    assert 'nearest' not in str(caught.value)


def test_a_forced_host_of_another_zone_is_refused(compute):
    with pytest.raises(oslo_messaging.RemoteError, match='NoValidHost'):
        compute.select(availability_zone='west', force_hosts=NAMES[:1])
    with pytest.raises(errors.NoValidHost):
        placed(compute, own('west', force_hosts=NAMES[:1]))
    assert placed(compute, own('east', force_hosts=NAMES[:1])) == NAMES[:1]
