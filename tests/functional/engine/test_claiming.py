"""Requests of which some instances hold a claim already."""

import uuid

import pytest

from scheduler_service import errors
from scheduler_service.model import ServerGroup
from scheduler_service.store.writing import server_groups
from tests.support.documents import CONTEXT, OWNER, SMALL, STRANGER
from tests.support.services import hosts_of
from tests.support.stores import load_snapshot


def test_instances_stay_in_place_when_others_are_asked_for_with_them(
    make_service,
):
    service = make_service()

    def ask(*uuids: str) -> list[tuple[str, str]]:
        request = {'flavor': SMALL, 'instance_uuids': [*uuids]}
        answer = service.client.select_destinations(CONTEXT, request)
        return [
            (one['instance_uuid'], one['selected']['host'])
            for one in answer['placements']
        ]

    first, held, last = (str(uuid.uuid4()) for _ in range(3))
    (before,) = ask(held)
    everything = ask(first, held, last)
    assert [one for one, _ in everything] == [first, held, last]
    assert everything[1] == before
    # It was not claimed twice.
    with service.store.reading() as conn:
        used = conn.exec_driver_sql(
            "SELECT sum(used) FROM inventories WHERE resource_class = 'VCPU'"
        )
        assert used.scalar_one() == 3


def test_a_group_of_another_project_is_not_joined(make_service):
    """Not even one that was stored since the hosts were read."""
    service = make_service()
    group = ServerGroup(uuid=str(uuid.uuid4()), project_id='p')
    service.store.write(lambda writer: server_groups.create(writer, group))
    asked = {'flavor': SMALL, 'instance_group': group.uuid}
    for _ in range(2):
        with pytest.raises(errors.Forbidden, match=group.uuid):
            service.client.select_destinations(
                STRANGER, {**asked, 'project_id': 'q'}
            )
        service.client.select_destinations(OWNER, {**asked, 'project_id': 'p'})
    with service.store.reading() as conn:
        held = conn.exec_driver_sql('SELECT * FROM server_group_members')
        assert len(held.all()) == 2


def test_a_claim_keeps_the_properties_of_its_image(make_service):
    """Filters compare them with those of later requests."""
    service = make_service()
    image = {'id': str(uuid.uuid4()), 'properties': {'os_distro': 'debian'}}
    answer = service.client.select_destinations(
        CONTEXT, {'flavor': SMALL, 'image': image}
    )
    (placement,) = answer['placements']
    placed = load_snapshot(service.store).hosts.instances.get(
        placement['instance_uuid']
    )
    assert placed is not None
    assert placed.image == frozenset({('os_distro', 'debian')})


@pytest.fixture
def start(make_service):
    """Give a function that starts a daemon whose first host has an instance.

    It is given the memory of each host, and returns the daemon and a function
    that moves the instance and returns its new host.
    """

    def started(claim, **sizes):
        service = make_service(
            inventory={
                'hosts': [
                    {'host': name, 'vcpus': 8, 'memory_mb': size}
                    for name, size in sizes.items()
                ]
            }
        )
        instance = str(uuid.uuid4())
        request = {
            'flavor': {'vcpus': 1, 'memory_mb': 512},
            'instance_uuids': [instance],
        }
        first = service.client.select_destinations(CONTEXT, request)
        assert hosts_of(first) == ['first']
        assert service.client.confirm(CONTEXT, [instance]) == [instance]

        def move():
            answer = service.client.select_destinations(
                CONTEXT, request, claim, move=True
            )
            return hosts_of(answer)

        return service, move

    return started


@pytest.mark.parametrize('claim', [True, False])
def test_an_instance_moves_elsewhere_when_its_own_host_is_the_best(
    start, claim
):
    service, move = start(claim, first=65536, other=2048)
    assert move() == ['other']
    # Its own host was not even tried.
    assert 'claims_lost' not in service.daemon.scheduler.health.counters()


def test_what_a_move_took_is_known_to_the_next_request(start):
    """It is not tried, and lost, on the host that the move filled."""
    service, move = start(True, first=1024, other=1024)
    assert move() == ['other']
    answer = service.client.select_destinations(
        CONTEXT, {'flavor': {'vcpus': 1, 'memory_mb': 512}}
    )
    assert len(hosts_of(answer)) == 1
    with pytest.raises(errors.NoValidHost):
        service.client.select_destinations(
            CONTEXT, {'flavor': {'vcpus': 1, 'memory_mb': 1200}}
        )
    assert 'claims_lost' not in service.daemon.scheduler.health.counters()


@pytest.mark.parametrize('claim', [True, False])
def test_no_host_is_found_when_an_instance_could_stay_only(start, claim):
    _, move = start(claim, first=65536)
    with pytest.raises(errors.NoValidHost) as caught:
        move()
    assert caught.value.name == 'NoValidHost'
