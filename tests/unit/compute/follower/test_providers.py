"""Bounds of providers that are read one by one."""

import threading
import time
from typing import Any

import pytest

from scheduler_service.compute.follower import providers
from scheduler_service.compute.follower.providers import (
    AllProviders,
    EarlyProviders,
    ProviderUnits,
)
from scheduler_service.compute.placement.client import Provider, Units
from scheduler_service.errors import PlacementUnavailable
from scheduler_service.model import HostReport

BOUNDS = {'VCPU': Units(1, 8, 1)}


class Client:
    """Stands in for the service, which cannot be made to fail in between.

    :ivar lost: the provider at which the service does not answer
    """

    lost = ''

    def units(self, uuid: str) -> Any:
        if uuid == self.lost:
            raise PlacementUnavailable('no answer')
        return BOUNDS


@pytest.mark.parametrize('lost', ['b', 'c'])
def test_a_provider_that_could_not_be_read_is_read_later(monkeypatch, lost):
    """Whether it is the first or the second of a turn."""
    monkeypatch.setattr(providers, '_TURN_S', 0.0)
    client: Any = Client()
    units = ProviderUnits(store=None, client=client)  # type: ignore[arg-type]
    units.follow('abc')
    client.lost = lost
    with pytest.raises(PlacementUnavailable):
        units.read_some()
    client.lost = ''
    for _ in 'abc':
        units.read_some()
    assert [units.of(uuid) for uuid in 'abc'] == [BOUNDS] * 3


ONE = Provider('u1', {'VCPU': 8, 'VGPU': 2}, {'VCPU': 1}, ['HW_X'])


def read(*providers, age=0.0):
    """Return what a read found so long ago."""
    found = {provider.uuid: provider for provider in providers}
    return AllProviders(1.0, {*found}, found, time.monotonic() - age)


def reported(uuid='u1'):
    return HostReport('h', 'n', {'uuid': uuid, 'state': 'up'})


@pytest.fixture
def early(monkeypatch):
    """Nobody is waited for."""
    monkeypatch.setattr(providers, '_WAIT_S', 0.0)
    return EarlyProviders()


def test_a_new_host_gets_what_its_provider_has(early):
    early.put(read(ONE))
    (made,) = early.complete([reported()])
    assert (made.host, made.node) == ('h', 'n')
    assert made.changes['state'] == 'up'
    assert made.changes['vcpus'] == 8
    assert made.changes['vcpus_used'] == 1
    assert made.changes['resources']['VGPU'].total == 2
    assert made.changes['traits'] == ['HW_X']
    # Once: a provider that changed is another one.
    assert early.has_written(ONE)
    assert not early.has_written(ONE)


def test_a_provider_that_changed_meanwhile_is_written_again(early):
    early.put(read(ONE))
    early.complete([reported()])
    assert not early.has_written(ONE._replace(used={'VCPU': 2}))


@pytest.mark.parametrize(
    'every', [None, read(), read(ONE._replace(uuid='u2')), read(ONE, age=60)]
)
def test_a_host_without_a_provider_stays_as_it_is(early, every):
    if every is not None:
        early.put(every)
    assert early.complete([reported()]) == [reported()]
    assert not early.has_written(ONE)


def test_a_host_that_is_written_again_without_it_has_none(early):
    early.put(read(ONE))
    early.complete([reported()])
    # Its transaction failed, and by now the hosts are all there.
    assert early.take() is not None
    assert early.complete([reported()]) == [reported()]
    assert not early.has_written(ONE)


def test_what_was_read_is_used_once_and_not_for_long(early):
    assert early.take() is None
    every = read(ONE)
    early.put(every)
    assert early.take() is every
    assert early.take() is None
    early.put(read(ONE, age=60))
    assert early.take() is None


def test_the_first_hosts_wait_for_it_a_moment():
    early = EarlyProviders()
    thread = threading.Timer(0.1, lambda: early.put(read(ONE)))
    thread.start()
    (made,) = early.complete([reported()])
    thread.join()
    assert made.changes['vcpus'] == 8


def test_nobody_waits_twice(monkeypatch):
    monkeypatch.setattr(providers, '_WAIT_S', 0.2)
    early = EarlyProviders()
    started = time.monotonic()
    for _ in range(100):
        assert early.complete([reported()]) == [reported()]
    assert time.monotonic() - started < 15
