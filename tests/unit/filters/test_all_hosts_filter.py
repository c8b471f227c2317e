"""AllHostsFilter passes every host."""

from scheduler_service.filters.hosts.all_hosts_filter import AllHostsFilter
from tests.support.plugins import has_opinion, inventory, passing

HOSTS = inventory(a={}, b={'state': 'down'}, c={'status': 'disabled'})


def test_every_host_passes_whatever_its_state():
    assert passing(AllHostsFilter(), HOSTS) == ['a', 'b', 'c']


def test_it_never_looks_at_the_hosts():
    assert not has_opinion(AllHostsFilter(), HOSTS)
