"""Bounds of providers that are read one by one."""

from typing import Any

import pytest

from scheduler_service.compute.follower import providers
from scheduler_service.compute.follower.providers import ProviderUnits
from scheduler_service.compute.placement.client import Units
from scheduler_service.errors import PlacementUnavailable

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
