"""Requests for members of server groups."""

import uuid

import pytest

from scheduler_service import errors
from tests.support.documents import CONTEXT, SMALL
from tests.support.services import hosts_of, reconfigure

# A policy, options with which nothing enforces it, and what is missing.
UNENFORCED = [
    (
        'anti-affinity',
        {'enabled_filters': ['ServerGroupAffinityFilter']},
        'ServerGroupAntiAffinityFilter',
        'is not enabled (enabled_filters)',
    ),
    (
        'affinity',
        {'enabled_filters': ['ServerGroupAntiAffinityFilter']},
        'ServerGroupAffinityFilter',
        'is not enabled (enabled_filters)',
    ),
    (
        'soft-anti-affinity',
        {'weight_classes': ['ServerGroupSoftAffinityWeigher']},
        'ServerGroupSoftAntiAffinityWeigher',
        'is not enabled (weight_classes)',
    ),
    (
        'soft-affinity',
        {'soft_affinity_weight_multiplier': 0.0},
        'ServerGroupSoftAffinityWeigher',
        'does not count (soft_affinity_weight_multiplier is 0)',
    ),
]
# With their memory in MB.
HOSTS = {'first': 4096, 'other': 8192, 'third': 2048}
GROUP, SECOND = (str(uuid.UUID(int=n)) for n in (1, 2))
MOVED, BESIDE, APART = PLACED = [str(uuid.UUID(int=n)) for n in (3, 4, 5)]


@pytest.fixture
def start(make_service):
    """Give a function that starts a daemon with reported members.

    ``first`` has MOVED and ``other`` has BESIDE, in one group, and ``third``
    has APART, in another group with MOVED.
    """

    def started(policy='anti-affinity', second=(), on=HOSTS, **options):
        groups = {GROUP: (MOVED, BESIDE), SECOND: second}
        return make_service(
            inventory={
                'hosts': [
                    {
                        'host': name,
                        'vcpus': 8,
                        'memory_mb': size,
                        'local_gb': 99,
                    }
                    for name, size in HOSTS.items()
                ],
                'instances': [
                    {'uuid': one, 'host': host}
                    for one, host in zip(PLACED, on, strict=True)
                ],
                'server_groups': [
                    {'uuid': group, 'policy': policy, 'members': members}
                    for group, members in groups.items()
                ],
            },
            **options,
        )

    return started


def ask(service, *uuids, claim=True, move=True, **request):
    answer = service.client.select_destinations(
        CONTEXT,
        {'flavor': SMALL, 'instance_uuids': uuids or [MOVED], **request},
        claim,
        move=move,
    )
    return hosts_of(answer)


def lost(service):
    return service.daemon.scheduler.health.counters().get('claims_lost', 0)


@pytest.mark.parametrize('claim', [True, False])
@pytest.mark.parametrize('group', [None, GROUP])
def test_member_moves_by_the_policy_of_its_group(start, claim, group):
    """The host with most room has another member."""
    service = start()
    named = {'instance_group': group}
    assert ask(service, claim=claim, **named) == ['third']
    assert lost(service) == 0


def test_reported_member_is_claimed_by_the_policy_of_its_group(start):
    service = start()
    named = {'ignore_hosts': ['first']}
    assert ask(service, move=False, **named) == ['third']
    assert lost(service) == 0


@pytest.mark.parametrize('group', [None, GROUP, SECOND])
def test_all_groups_of_an_instance_count(start, group):
    service = start(second=(MOVED, APART))
    with pytest.raises(errors.NoValidHost) as caught:
        ask(service, instance_group=group)
    facts = caught.value.facts
    assert [c['filter'] for c in facts['filters']] == [
        'ignore_hosts',
        'ServerGroupAntiAffinityFilter',
    ]
    assert facts['filters'][-1]['out'] == 2


def test_instances_of_one_request_are_in_different_groups(start):
    """What one of them must not be near, the other may be."""
    service = start(second=[APART])
    assert ask(service, MOVED, APART, move=False) == ['first', 'other']


@pytest.mark.parametrize('move', [True, False])
@pytest.mark.parametrize('claim', [True, False])
def test_request_that_names_another_group_is_refused(start, claim, move):
    service = start()
    with pytest.raises(errors.Conflict) as caught:
        ask(service, claim=claim, move=move, instance_group=SECOND)
    assert caught.value.name == 'ServerGroupMismatch'
    assert caught.value.facts == {
        'instance': MOVED,
        'named': SECOND,
        'server_groups': [GROUP],
    }


def test_soft_policy_of_a_stored_group_is_weighed(start):
    service = start('soft-anti-affinity')
    assert ask(service) == ['third']
    service.release_all()
    service = start('soft-affinity', second=(MOVED, APART))
    assert ask(service) == ['other']


DEDICATED = {**SMALL, 'extra_specs': {'hw:cpu_policy': 'dedicated'}}


@pytest.mark.parametrize(
    ('policy', 'on'),
    [
        ('anti-affinity', HOSTS),
        ('affinity', ['first', 'first', 'third']),
    ],
)
@pytest.mark.parametrize('move', [True, False, None])
@pytest.mark.parametrize('flavor', [SMALL, DEDICATED])
def test_claim_that_breaks_a_policy_says_so(start, policy, on, move, flavor):
    """A host that is forced is not filtered, but the claim is made by it."""
    service = start(policy, on=on)
    new = {'instance_group': GROUP, 'instance_uuids': [str(uuid.uuid4())]}
    for request in ({'force_hosts': ['other']}, {'force_nodes': ['other']}):
        for more in ({}, new) if move is not True else ({},):
            asked = {**request, **more, 'flavor': flavor}
            with pytest.raises(errors.NoValidHost) as caught:
                ask(service, move=move, **asked)
            assert caught.value.name == 'NoValidHost'
            assert str(caught.value) == (
                'No valid host was found. The host would break the policy of '
                f'server group {GROUP}'
            )


def test_broken_group_gets_members(start):
    """It was reported so; two of its members are on one host."""
    service = start(on=['first', 'first', 'third'])
    new = {'move': False, 'instance_group': GROUP}
    assert ask(service, str(uuid.uuid4()), **new) == ['other']
    assert ask(service, str(uuid.uuid4()), **new) == ['third']
    with pytest.raises(errors.NoValidHost, match='AntiAffinity'):
        ask(service, str(uuid.uuid4()), **new)
    assert lost(service) == 0


@pytest.mark.parametrize(('policy', 'options', 'missing', 'why'), UNENFORCED)
def test_policy_that_nothing_enforces_is_refused(
    start, caplog, policy, options, missing, why
):
    """By the group that is named, or by that of a stored instance."""
    options = {f'filter_scheduler__{k}': v for k, v in options.items()}
    service = start(policy, **options)
    said = f'that nothing enforces: {policy} (groups: 2): {missing} {why}'
    assert said in caplog.text
    new = str(uuid.uuid4())
    for request in (
        {'instance_group': GROUP, 'instance_uuids': [new]},
        {'instance_uuids': [MOVED]},
    ):
        document = {'flavor': SMALL, **request}
        for call in (
            lambda asked: ask(service, **asked),
            lambda asked: ask(service, claim=False, **asked),
            lambda asked: service.client.explain(CONTEXT, asked),
        ):
            with pytest.raises(errors.Conflict) as caught:
                call(document)
            assert caught.value.name == 'ServerGroupNotEnforced'
            assert caught.value.facts == {
                'server_group': GROUP,
                'policy': policy,
                'missing': missing,
            }
            assert str(caught.value) == (
                f'Nothing enforces the policy {policy} of server group '
                f'{GROUP}: {missing} {why}'
            )
    assert ask(service, new, lenient=True, instance_group=GROUP)
    assert ask(service, str(uuid.uuid4()))
    caplog.clear()
    reconfigure(service)
    assert said not in caplog.text
    assert ask(service, str(uuid.uuid4()), instance_group=GROUP)
    reconfigure(service, **options)
    assert said in caplog.text


def test_multiplier_of_an_aggregate_enforces_a_policy(make_service):
    option = 'soft_affinity_weight_multiplier'
    service = make_service(
        inventory={
            'hosts': [
                {'host': name, 'vcpus': 8, 'memory_mb': 4096, 'local_gb': 9}
                for name in HOSTS
            ],
            'aggregates': [
                {
                    'id': 1,
                    'name': 'a',
                    'hosts': ['first'],
                    'metadata': {option: '2'},
                }
            ],
            'server_groups': [{'uuid': GROUP, 'policy': 'soft-affinity'}],
        },
        **{f'filter_scheduler__{option}': 0.0},
    )
    assert ask(service, str(uuid.uuid4()), instance_group=GROUP)


def test_nobody_joins_an_affinity_group_whose_only_member_moves(start):
    """Not even where it will be: its move may be dropped."""
    service = start('affinity')
    lone, new = (str(uuid.UUID(int=n)) for n in (6, 7))
    named = {'instance_group': SECOND}
    (here,) = ask(service, lone, move=False, **named)
    (there,) = ask(service, lone, **named)
    assert here != there
    with pytest.raises(errors.NoValidHost, match=r'members of the .* move'):
        ask(service, new, move=False, **named)
    service.client.drop_moves(CONTEXT, [lone])
    assert ask(service, new, move=False, **named) == [here]
    assert lost(service) == 0
