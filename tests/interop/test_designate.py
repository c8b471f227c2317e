"""A designate-central of the index that asks our daemon for pools."""

import uuid

import pytest

from tests.support import designate, processes, servers
from tests.support.databases import ready_database
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.functional,
    pytest.mark.broker,
]

ADMIN = {'roles': ['admin', 'member', 'reader']}
FILTERS = '[pool_scheduler]\nscheduler_filters = attribute,pool_id_attribute\n'


class World:
    """A daemon and a designate-central with two pools of its own."""

    def __init__(self, central, start_daemon):
        self.central = central
        self._start_daemon = start_daemon
        self.daemon = start_daemon()
        self.pools = {
            level: central.call(
                'create_pool', name=level, attributes={'level': level}, **ADMIN
            )
            for level in ('gold', 'silver')
        }

    def zone(self, attributes, **who):
        """Create a zone of a new name."""
        name = f'z{uuid.uuid4().hex[:8]}.example.'
        return self.central.call(
            'create_zone', name=name, attributes=attributes, **who
        )

    def restart_daemon(self):
        self.daemon = self._start_daemon()


@pytest.fixture(scope='module')
def world(rabbitmq, tmp_path_factory):
    folder = tmp_path_factory.mktemp('designate')
    vhost = servers.new_vhost(*rabbitmq)
    database = ready_database(f'sqlite:///{folder}/')
    config = folder / 'scheduler.conf'
    config.write_text(
        f'[DEFAULT]\ntransport_url = {vhost}\n'
        f'[database]\nconnection = {database}\n{FILTERS}'
    )
    running = []

    def start_daemon():
        running.append(processes.launch(config))
        running[-1].wait_for('Ready')
        return running[-1]

    try:
        with designate.central(folder, vhost) as central:
            yield World(central, start_daemon)
    finally:
        for process in running:
            process.remove()


def test_a_zone_goes_to_the_pool_with_its_attributes(world):
    for level, pool_id in world.pools.items():
        assert world.zone({'level': level})['pool_id'] == pool_id


def test_a_forced_pool_is_chosen_for_an_administrator_alone(world):
    wanted = {'pool_id': world.pools['silver']}
    assert world.zone(wanted, **ADMIN)['pool_id'] == world.pools['silver']
    with pytest.raises(designate.Refused) as caught:
        world.zone(wanted)
    assert (caught.value.name, caught.value.code) == ('Forbidden', 403)


@pytest.mark.parametrize(
    ('attributes', 'name', 'code', 'text'),
    [
        ({'level': 'iron'}, 'NoValidPoolFound', 404, 'attribute left 0'),
        ({}, 'MultiplePoolsFound', 500, 'pools match'),
        ({'pool_id': str(uuid.uuid4())}, 'NoValidPoolFound', 404, ''),
        ({'pool_id': 'silver', 'level': 'gold'}, 'NoValidPoolFound', 404,
         'attribute left it out'),
    ],
)  # fmt: skip
def test_a_refusal_is_an_error_of_designate(
    world, attributes, name, code, text
):
    wanted = {
        key: world.pools.get(value, value) if key == 'pool_id' else value
        for key, value in attributes.items()
    }
    with pytest.raises(designate.Refused) as caught:
        world.zone(wanted, **ADMIN)
    assert (caught.value.name, caught.value.code) == (name, code)
    assert text in caught.value.text


def test_an_import_goes_to_the_pool_with_its_attributes(world):
    found = world.central.imported({'level': 'silver'})
    assert found['status'] == 'COMPLETE', found
    assert found['pool_id'] == world.pools['silver']


def test_an_import_without_a_valid_pool_is_refused_at_once(world):
    with pytest.raises(designate.Refused) as caught:
        world.central.imported({'level': 'iron'})
    assert (caught.value.name, caught.value.code) == ('NoValidPoolFound', 404)


def test_a_zone_moves_to_the_pool_with_its_new_attributes(world):
    zone = world.zone({'level': 'gold'})['id']
    with pytest.raises(designate.Refused, match='No valid pool selected'):
        world.central.call('move_zone', zone_id=zone, **ADMIN)
    world.central.call(
        'set_attributes', zone_id=zone, attributes={'level': 'silver'}, **ADMIN
    )
    moved = world.central.call('move_zone', zone_id=zone, **ADMIN)
    assert moved == world.pools['silver']


def test_without_a_daemon_the_error_says_so_and_it_passes(world):
    assert world.daemon.end() == 0
    with pytest.raises(designate.Refused) as caught:
        world.zone({'level': 'gold'})
    assert caught.value.name == 'CommunicationFailure'
    assert caught.value.code == 504
    assert 'No scheduler answered on topic' in caught.value.text
    world.restart_daemon()

    def works():
        return world.zone({'level': 'gold'})['pool_id'] == world.pools['gold']

    wait_until(works)
