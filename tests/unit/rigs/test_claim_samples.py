"""Tables whose claims keep the policies of groups, or do not."""

import json
import uuid

import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from tests.rigs import claim_samples
from tests.rigs.claim_room import Member
from tests.support.stores import (
    claim_on,
    import_inventory,
    load_snapshot,
    write_claims,
)

pytestmark = pytest.mark.db

GROUP = 'aaaaaaaa-0000-4000-8000-000000000002'
APART = Member(1024, GROUP, 'anti-affinity')
PAIRED = APART._replace(most=2)
TOGETHER = Member(1024, GROUP, 'affinity')


def claim(store, row, group=GROUP, **how):
    """Claim the host of a row for an instance; return its uuid."""
    snapshot = load_snapshot(store)
    host = snapshot.hosts.host_at(row)
    how.setdefault('consumer', str(uuid.uuid4()))
    made = claim_on(
        snapshot,
        row,
        group=group,
        placement=json.dumps({'selected': {'host': host}}),
        **how,
    )
    write_claims(store, made)
    return made.consumer


def wrong(store, member, *uuids):
    """Return what is wrong where instances were placed as such members."""
    hosts = load_snapshot(store).hosts
    ids = {hosts.host_at(row): int(hosts.ids[row]) for row in range(2)}
    with store.reading() as conn:
        return claim_samples.take(
            conn, ids, dict.fromkeys(uuids, member)
        ).wrong


@pytest.fixture
def store(make_store):
    """A store with two hosts and a group of no policy of its own."""
    made = make_store()
    import_inventory(made, {
        'hosts': [{'host': name, 'vcpus': 8, 'memory_mb': 8192}
                  for name in ('a', 'b')],
        'server_groups': [{'uuid': GROUP, 'policy': 'soft-affinity'}],
    })  # fmt: skip
    return made


def test_members_that_a_policy_allows_are_right(store):
    first, second = claim(store, 0), claim(store, 1)
    assert wrong(store, APART, first, second) == []
    third = claim(store, 0)
    assert wrong(store, PAIRED, first, second, third) == []


def test_members_on_the_same_hosts_are_too_many(store):
    some = [claim(store, 0), claim(store, 0)]
    (text,) = wrong(store, APART, *some)
    assert "members on {'a': 2}" in text
    some.append(claim(store, 0))
    (text,) = wrong(store, PAIRED, *some)
    assert "members on {'a': 3}" in text


def test_a_member_that_moves_is_on_both_hosts(store):
    first, second = claim(store, 0), claim(store, 1)
    claim(store, 0, consumer=second, is_present=True, move=True)
    (text,) = wrong(store, APART, first, second)
    assert "members on {'a': 2, 'b': 1}" in text
    assert wrong(store, TOGETHER, first, second) == []


def test_members_that_are_not_together_are_wrong(store):
    first, second = claim(store, 0), claim(store, 0)
    assert wrong(store, TOGETHER, first, second) == []
    third = claim(store, 1)
    (text,) = wrong(store, TOGETHER, first, second, third)
    assert "members on {'a': 2, 'b': 1}" in text


def test_a_member_that_lost_its_group_is_wrong_and_counts(store):
    first, second = claim(store, 0), claim(store, 0)
    table = schema.server_group_members
    lost = sa.delete(table).where(table.c.instance_uuid == first)
    store.write(lambda writer: writer.conn.execute(lost))
    texts = wrong(store, APART, first, second)
    assert f'{first} has a claim, and is no member of {GROUP}' in texts
    assert any("members on {'a': 2}" in text for text in texts)
