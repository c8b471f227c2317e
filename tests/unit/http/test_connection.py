"""Which client a connection counts for."""

import pytest

from scheduler_service.http.connection import owner_of


@pytest.mark.parametrize(
    ('host', 'owner'),
    [
        ('192.0.2.1', '192.0.2.1'),
        ('::ffff:192.0.2.1', '192.0.2.1'),
        ('2001:db8:1:2:3:4:5:6', '2001:db8:1:2::/64'),
        ('fe80::1%eth0', 'fe80::/64'),
    ],
)
def test_ipv6_addresses_of_one_network_have_one_owner(host, owner):
    assert owner_of((host, 1)) == owner
