"""The mix of requests: its proportions, and that it can be satisfied."""

import collections

import pytest

from benchmarks import mixes
from scheduler_service.model import documents

COUNT, HOSTS = 20_000, 1000


@pytest.fixture(scope='module')
def mix() -> mixes.Mix:
    return mixes.cloud(COUNT, HOSTS)


def share(mix: mixes.Mix, holds) -> float:
    return sum(holds(request.document) for request in mix.requests) / COUNT


def test_mix_is_the_same_when_the_seed_is() -> None:
    assert mixes.cloud(500, HOSTS) == mixes.cloud(500, HOSTS)
    assert mixes.cloud(500, HOSTS) != mixes.cloud(500, HOSTS, seed=2)


@pytest.mark.parametrize(
    ('expected', 'holds'),
    [
        (0.12, lambda one: 'extra_specs' in one['flavor']),
        (0.15, lambda one: one.get('num_instances', 1) > 1),
        (0.15, lambda one: 'instance_group' in one),
        (0.05, lambda one: 'ignore_hosts' in one),
        (0.25, lambda one: 'availability_zone' not in one),
    ],
    ids=['extra specs', 'several instances', 'groups', 'ignored', 'no zone'],
)
def test_shares_are_as_documented(mix, expected, holds) -> None:
    assert share(mix, holds) == pytest.approx(expected, abs=0.01)


def test_one_request_in_a_hundred_may_be_refused(mix) -> None:
    outcomes = collections.Counter(request.outcome for request in mix.requests)
    assert set(outcomes) == {'placed', 'refused'}
    assert outcomes['refused'] / COUNT == pytest.approx(0.01, abs=0.003)


def test_groups_have_every_policy_and_few_members(mix) -> None:
    members: collections.Counter[str] = collections.Counter()
    for request, _ in mix.requests:
        if 'instance_group' in request:
            members[request['instance_group']] += request.get(
                'num_instances', 1
            )
    policies = {group['uuid']: group['policy'] for group in mix.server_groups}
    assert set(policies.values()) == set(mixes.POLICIES)
    assert set(members) <= set(policies)
    for group, count in members.items():
        assert count <= mixes.MOST_MEMBERS.get(policies[group], 10)


def test_requests_and_inventory_are_valid_documents(mix) -> None:
    document = mixes.inventory(HOSTS)
    document['server_groups'] = mix.server_groups
    parsed = documents.inventory(document)
    assert len(parsed.hosts) == HOSTS
    names = {host.host for host in parsed.hosts}
    for request, _ in mix.requests[:2000]:
        assert set(documents.request(request).ignore_hosts or ()) <= names
