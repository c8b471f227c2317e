"""How connections and the bytes of bodies are counted."""

from __future__ import annotations

import math

import pytest

from scheduler_service.http.connection import Limits, owner_of


class Waiting:
    """A connection that waits for its client."""

    def __init__(self, owner: str, deadline: float = math.inf) -> None:
        self.owner = owner
        self.deadline = deadline
        self.late = 'idle'
        self.dropped = False

    def drop(self) -> None:
        self.dropped = True


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


def test_connection_that_works_is_kept_when_an_address_has_too_many():
    limits = Limits(total=9, per_address=2, buffered_bytes=1)
    works, waits = Waiting('a'), Waiting('a')
    limits.add(works)
    limits.add(waits)
    limits.work(works)
    assert limits.admit('a')
    assert (works.dropped, waits.dropped) == (False, True)
    limits.add(third := Waiting('a'))
    limits.work(third)
    assert not limits.admit('a')
    assert limits.admit('b')
    assert limits.closed == {'address limit': 2}


def test_owner_with_most_connections_loses_one_when_all_are_too_many():
    limits = Limits(total=3, per_address=9, buffered_bytes=1)
    single = Waiting('a')
    many = [Waiting('b'), Waiting('b')]
    for each in (single, *many):
        limits.add(each)
    assert limits.admit('c')
    assert [each.dropped for each in (single, *many)] == [False, True, False]
    assert len(limits) == 2


def test_connection_is_closed_when_its_deadline_has_passed():
    limits = Limits(total=9, per_address=9, buffered_bytes=1)
    early, late = Waiting('a', 10.0), Waiting('a', 20.0)
    limits.add(early)
    limits.add(late)
    limits.drop_late(15.0)
    assert (early.dropped, late.dropped, len(limits)) == (True, False, 1)


def test_body_is_not_held_when_others_have_too_many_bytes():
    limits = Limits(total=9, per_address=9, buffered_bytes=10)
    assert limits.hold(6)
    assert not limits.hold(5)
    limits.free(6)
    assert limits.hold(10)
