"""How connections and the bytes of bodies are counted."""

import pytest

from scheduler_service.http.connection import Limits, owner_of


@pytest.mark.parametrize(
    ('host', 'owner'),
    [
        ('192.0.2.1', '192.0.2.1'),
        ('::ffff:192.0.2.1', '192.0.2.1'),
        ('::1', '::1'),
        ('2001:db8:1:2:3:4:5:6', '2001:db8:1:2::/64'),
        ('fe80::1%eth0', 'fe80::/64'),
    ],
)
def test_ipv6_addresses_of_one_network_have_one_owner(host, owner):
    assert owner_of((host, 1)) == owner


def test_body_is_not_held_when_others_have_too_many_bytes():
    limits = Limits(total=9, per_address=9, buffered_bytes=10)
    assert limits.hold(6)
    assert not limits.hold(5)
    limits.free(6)
    assert limits.hold(10)
