"""Daemons on a topic: who was heard, and which have another store."""

from __future__ import annotations

import pytest

from scheduler_service.engine.health import Health
from scheduler_service.rpc.peers import Peer, Peers
from tests.support.clocks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def peers(clock: Clock) -> Peers:
    made = Peers(Health(clock), clock)
    made.own = Peer('1', 'one', 7)
    return made


def test_a_daemon_hears_others_and_not_itself(peers):
    peers.hear(Peer('1', 'one', 7))
    peers.hear(Peer('2', 'two', 7))
    assert peers.names() == ['two']
    assert peers.elsewhere() == []


def test_another_store_degrades_until_its_daemons_are_silent(peers, clock):
    peers.hear(Peer('2', 'two', 8))
    peers.hear(Peer('3', 'three', None))
    assert peers.elsewhere() == ['two']
    (text,) = peers._health.degraded
    assert text.endswith('decide a part of the requests: two')
    clock.now += 36
    assert peers.elsewhere() == []
    assert peers._health.degraded == []
    assert peers.names() == []


def test_daemons_with_one_name_are_told_apart(peers):
    peers.hear(Peer('2', 'one', 8))
    assert peers.elsewhere() == ['one']


def test_nothing_is_compared_before_the_own_store_is_known(clock):
    peers = Peers(Health(clock), clock)
    peers.hear(Peer('2', 'two', 8))
    assert peers.elsewhere() == []
