"""Hosts, instances and aggregates follow the compute service's databases."""

import contextlib
import dataclasses
import datetime
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service.cmd.daemon import Daemon
from scheduler_service.compute.follower.databases import ReadOnlyDatabase
from scheduler_service.compute.follower.mirror import Mirror, MirrorOptions
from scheduler_service.engine.health import Health
from scheduler_service.store import schema
from scheduler_service.store.reading import loading
from tests.support import compute
from tests.support.compute import ComputeCaller, new_topic
from tests.support.documents import CONTEXT, SMALL
from tests.support.nova_databases import NovaDatabases, cell_uuid, utc_now
from tests.support.nova_wire import flavor
from tests.support.services import connected, hosts_of, new_conf
from tests.support.stores import (
    claim_on,
    claim_state,
    load_snapshot,
    stored_host,
    used_amounts,
    write_claims,
)
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.slow
# Far longer than between two looks, far shorter than between whole reads.


# Drivers make other rows of each server; what becomes of rows is the same.
on_each_server = pytest.mark.parametrize(
    'nova', ['nova_base', 'nova_on_mariadb'], indirect=True
)


@pytest.fixture(scope='session')
def nova_on_mariadb(mariadb: Any) -> Iterator[NovaDatabases]:
    """The compute service's databases on MariaDB."""
    made = NovaDatabases(mariadb[1])
    yield made
    made.close()


@pytest.fixture
def nova(request: pytest.FixtureRequest) -> NovaDatabases:
    """The databases, with nothing but the mappings of their cells."""
    name = getattr(request, 'param', 'nova_base')
    found: NovaDatabases = request.getfixturevalue(name)
    found.reset()
    return found


@pytest.fixture
def store(make_store: Any) -> Any:
    """Our own database."""
    return make_store('postgresql')


@pytest.fixture
def touched() -> list[str]:
    """The service hosts that the mirror says have changed."""
    return []


@pytest.fixture
def start(
    nova: NovaDatabases, store: Any, touched: list[str]
) -> Iterator[Callable[..., Mirror]]:
    """Give a function that starts a mirror of the databases."""
    running: list[Mirror] = []

    def make(cell_url: Any = None, **options: Any) -> Mirror:
        health = Health()
        made = Mirror(
            store,
            MirrorOptions(
                api_database=nova.api, **{'poll_interval': 0.1, **options}
            ),
            health,
            f'daemon-{len(running)}',
            touched.extend,
        )
        if cell_url is not None:
            made.cell_url = cell_url
        made.start()
        running.append(made)
        return made

    yield make
    for one in running:
        one.stop(LIMIT_S)


def hosts(store: Any) -> dict[str, Any]:
    """Return the hosts of the store by name."""
    with store.reading() as conn:
        return {host.host: host for host in loading.hosts(conn).values()}


def instances(store: Any) -> dict[str, str]:
    """Return the host of each instance of the store."""
    with store.reading() as conn:
        found = loading.instance_documents(conn)
    return {one.uuid: one.host for one, _ in found}


def follows(check: Callable[[], Any]) -> None:
    """Wait until something is so, as a look for changes sees it.

    That is well before everything is read as a whole. The two seconds that
    are promised would be a test of how busy the machine is.
    """
    wait_until(check)


@on_each_server
def test_a_host_and_what_it_has_are_there(nova, store, start):
    uuid = nova.add_host('c1')
    nova.add_host('c2', cell=2, cpu_allocation_ratio=4.0)
    nova.insert(
        nova.api, 'flavors', id=5, name='m1', memory_mb=1, vcpus=1,
        flavorid='small', swap=0, disabled=False, is_public=True,
    )  # fmt: skip
    vm = nova.add_instance('c1', instance_type_id=5)
    nova.add_aggregate(3, 'ssd', ['c1'], availability_zone='z1')
    start()
    wait_until(lambda: len(hosts(store)) == 2 and instances(store))
    one = stored_host(store, 'c1')
    assert (one.uuid, one.cell_uuid) == (uuid, cell_uuid(1))
    assert (one.vcpus, one.memory_mb, one.local_gb) == (8, 16384, 100)
    assert one.memory_mb_used == 512
    assert (one.status, one.state, one.host_ip) == (
        'enabled', 'up', '192.0.2.1',
    )  # fmt: skip
    assert (one.failed_builds, one.num_io_ops, one.num_instances) == (2, 1, 1)
    assert one.supported_instances == [['x86_64', 'kvm', 'hvm']]
    assert stored_host(store, 'c2').cpu_allocation_ratio == 4.0
    with store.reading() as conn:
        document = loading.instance_documents(conn, [vm])[0][0]
        groups = loading.aggregates(conn)
    assert document.flavor == {'flavorid': 'small'}
    assert document.project_id == 'p1'
    assert [(a.id, a.hosts, a.metadata) for a in groups] == [
        (3, ['c1'], {'availability_zone': 'z1'})
    ]


def test_hosts_that_are_not_ready_are_left_out(nova, store, start):
    nova.add_host('ready')
    nova.add_host('starting', free_disk_gb=None)
    nova.add_host('unmapped')
    nova.delete(nova.api, 'host_mappings', host='unmapped')
    nova.add_host('no-service')
    nova.update(
        nova.cells[0], 'services', {'host': 'no-service'}, deleted=1
    )  # fmt: skip
    start()
    wait_until(lambda: hosts(store))
    assert [*hosts(store)] == ['ready']


def test_changes_of_hosts_follow(nova, store, start):
    nova.add_host('c1')
    start()
    wait_until(lambda: hosts(store))
    cell = nova.cells[0]
    nova.update(cell, 'compute_nodes', {'host': 'c1'}, vcpus_used=3)
    follows(lambda: stored_host(store, 'c1').vcpus_used == 3)
    nova.update(
        cell, 'services', {'host': 'c1'}, disabled=True, disabled_reason='x'
    )
    follows(lambda: stored_host(store, 'c1').disabled_reason == 'x')
    assert stored_host(store, 'c1').status == 'disabled'
    nova.update(cell, 'services', {'host': 'c1'}, forced_down=True)
    follows(lambda: stored_host(store, 'c1').state == 'down')
    nova.update(cell, 'services', {'host': 'c1'}, forced_down=False)
    follows(lambda: stored_host(store, 'c1').state == 'up')
    long_ago = utc_now() - datetime.timedelta(seconds=120)
    nova.update(cell, 'services', {'host': 'c1'}, last_seen_up=long_ago)
    follows(lambda: stored_host(store, 'c1').state == 'down')
    nova.add_host('c2')
    follows(lambda: 'c2' in hosts(store))
    nova.update(
        cell, 'compute_nodes', {'host': 'c1'}, deleted=1, deleted_at=utc_now()
    )
    follows(lambda: 'c1' not in hosts(store))


def test_a_node_that_was_made_again_has_its_new_uuid(nova, store, start):
    old = nova.add_host('c1')
    start()
    wait_until(lambda: hosts(store))
    cell = nova.cells[0]
    nova.delete(cell, 'compute_nodes', uuid=old)
    nova.delete(cell, 'services', host='c1')
    nova.delete(nova.api, 'host_mappings', host='c1')
    new = nova.add_host('c1')
    follows(lambda: [host.uuid for host in hosts(store).values()] == [new])


def test_changes_of_aggregates_follow(nova, store, start):
    nova.add_host('c1')
    nova.add_aggregate(1, 'one', ['c1'], ssd='true')
    start()

    def aggregates() -> list[Any]:
        with store.reading() as conn:
            return [
                (a.id, a.hosts, a.metadata) for a in loading.aggregates(conn)
            ]

    wait_until(lambda: aggregates() == [(1, ['c1'], {'ssd': 'true'})])
    nova.delete(nova.api, 'aggregate_hosts', aggregate_id=1)
    follows(lambda: aggregates() == [(1, [], {'ssd': 'true'})])
    nova.update(nova.api, 'aggregate_metadata', {'key': 'ssd'}, value='no')
    follows(lambda: aggregates() == [(1, [], {'ssd': 'no'})])
    nova.delete(nova.api, 'aggregate_metadata', aggregate_id=1)
    nova.delete(nova.api, 'aggregates', id=1)
    follows(lambda: not aggregates())


@on_each_server
def test_instances_follow_and_confirm_or_end_claims(nova, store, start):
    nova.add_host('c1')
    nova.add_host('c2')
    start()
    wait_until(lambda: len(hosts(store)) == 2)
    cell = nova.cells[0]
    snapshot = load_snapshot(store)
    built, failed = (claim_on(snapshot, 0) for _ in range(2))
    write_claims(store, built, failed)
    nova.add_instance(None, uuid=built.consumer, vm_state='building')
    nova.add_instance(None, uuid=failed.consumer, vm_state='building')
    nova.update(
        cell, 'instances', {'uuid': built.consumer}, host=built.host,
        node=built.host,
    )  # fmt: skip
    # What the host now counts itself is not counted twice.
    nova.update(
        cell, 'compute_nodes', {'host': built.host}, memory_mb_used=1536,
        vcpus_used=1,
    )  # fmt: skip
    follows(lambda: claim_state(store, built.consumer) == 'confirmed')
    follows(lambda: used_amounts(store)['MEMORY_MB'] == 512 + 2048)
    nova.update(cell, 'instances', {'uuid': failed.consumer}, vm_state='error')
    follows(lambda: claim_state(store, failed.consumer) is None)
    nova.update(
        cell, 'instances', {'uuid': built.consumer}, deleted=1,
        deleted_at=utc_now(),
    )  # fmt: skip
    nova.update(
        cell, 'compute_nodes', {'host': built.host}, memory_mb_used=512,
        vcpus_used=0,
    )  # fmt: skip
    follows(lambda: claim_state(store, built.consumer) is None)
    follows(lambda: used_amounts(store)['MEMORY_MB'] == 512)
    assert instances(store) == {}


@on_each_server
def test_images_of_instances_follow_where_they_count(nova, store, start):
    nova.add_host('c1')
    made = nova.add_instance('c1')
    for key, value in (
        ('image_hw_disk_bus', 'virtio'),
        ('image_hw_vif_multiqueue_enabled', 'true'),
        ('image_min_ram', '64'),
        ('owner_user_name', 'someone'),
    ):
        nova.insert(
            nova.cells[0], 'instance_system_metadata', instance_uuid=made,
            key=key, value=value, deleted=0,
        )  # fmt: skip

    def image() -> Any:
        with store.reading() as conn:
            found = loading.instance_documents(conn)
        return {one.uuid: one.image_meta for one, _ in found}.get(made)

    start(with_images=True)
    properties = {'hw_disk_bus': 'virtio', 'hw_vif_multiqueue_enabled': True}
    follows(lambda: image() == {'properties': properties})


def test_instance_that_moved_is_where_it_is(nova, store, start, touched):
    nova.add_host('c1')
    nova.add_host('c2')
    vm = nova.add_instance('c1')
    start()
    wait_until(lambda: instances(store) == {vm: 'c1'})
    wait_until(lambda: {*touched} == {'c1', 'c2'})
    touched.clear()
    nova.update(nova.cells[0], 'instances', {'uuid': vm}, host='c2', node='c2')
    follows(lambda: instances(store) == {vm: 'c2'})
    # Room is made where it was.
    follows(lambda: {*touched} == {'c1', 'c2'})
    nova.update(nova.cells[0], 'instances', {'uuid': vm}, host=None, node=None)
    follows(lambda: instances(store) == {})


def test_a_failed_cell_is_left_out_and_comes_back(nova, store, start, caplog):
    nova.add_host('c1')
    nova.add_host('c2', cell=2)
    mirror = start()
    wait_until(lambda: len(hosts(store)) == 2)
    broken = nova.cells[1]
    nova.run(broken, 'ALTER TABLE services RENAME TO gone')
    follows(lambda: stored_host(store, 'c2').state == 'down')
    assert stored_host(store, 'c1').state == 'up'
    health = mirror._health
    health.log_changes()
    nova.update(nova.cells[0], 'compute_nodes', {'host': 'c1'}, vcpus_used=5)
    follows(lambda: stored_host(store, 'c1').vcpus_used == 5)
    health.log_changes()
    warned = [
        message
        for message in caplog.messages
        if 'cell2 is left out' in message
    ]
    assert len(warned) == 1
    nova.run(broken, 'ALTER TABLE gone RENAME TO services')
    follows(lambda: stored_host(store, 'c2').state == 'up')
    assert health.degraded == []


def test_cells_that_are_disabled_or_new_follow(nova, store, start):
    nova.add_host('c1')
    nova.add_host('c2', cell=2)
    start()
    wait_until(lambda: len(hosts(store)) == 2)
    mapping = {'uuid': cell_uuid(2)}
    nova.update(nova.api, 'cell_mappings', mapping, disabled=True)
    follows(lambda: [*hosts(store)] == ['c1'])
    nova.update(nova.api, 'cell_mappings', mapping, disabled=False)
    follows(lambda: len(hosts(store)) == 2)


def test_one_daemon_writes_and_another_takes_over(nova, store, start):
    nova.add_host('c1')
    first = start()
    wait_until(lambda: first.leading and hosts(store))
    second = start()
    time.sleep(1.5)
    assert not second.leading
    # It dies without giving up its lease.
    first._lease.give_up = lambda: None
    first.stop(LIMIT_S)
    nova.update(nova.cells[0], 'compute_nodes', {'host': 'c1'}, vcpus_used=7)
    wait_until(lambda: stored_host(store, 'c1').vcpus_used == 7)
    assert second.leading


def test_a_hint_is_followed_at_once(nova, store, start):
    nova.add_host('c1')
    mirror = start(poll_interval=60.0)
    wait_until(lambda: hosts(store))
    nova.update(nova.cells[0], 'compute_nodes', {'host': 'c1'}, vcpus_used=2)
    mirror.wake()
    wait_until(lambda: stored_host(store, 'c1').vcpus_used == 2)


def test_other_options_count_at_once(nova, store, start):
    nova.add_host('c1')
    options = MirrorOptions(api_database=nova.api, poll_interval=60.0)
    mirror = start(poll_interval=60.0)
    wait_until(lambda: hosts(store))
    nova.update(nova.cells[0], 'compute_nodes', {'host': 'c1'}, vcpus_used=2)
    # The same options: nothing is connected or read anew.
    api = mirror._api
    mirror.use(options)
    wait_until(lambda: stored_host(store, 'c1').vcpus_used == 2)
    assert mirror._api is api
    mirror.use(dataclasses.replace(options, poll_interval=0.1))
    wait_until(lambda: mirror._api is not api)
    nova.update(nova.cells[0], 'compute_nodes', {'host': 'c1'}, vcpus_used=3)
    follows(lambda: stored_host(store, 'c1').vcpus_used == 3)


def test_all_is_read_when_that_is_asked_for(nova, store, start):
    long_ago = utc_now() - datetime.timedelta(hours=1)
    nova.add_host('c1', created_at=long_ago, updated_at=long_ago)
    nova.add_host('c2')
    mirror = start()
    wait_until(lambda: len(hosts(store)) == 2)
    # Without a new time, nobody sees it.
    nova.update(
        nova.cells[0], 'compute_nodes', {'host': 'c1'}, vcpus_used=2,
        updated_at=long_ago,
    )  # fmt: skip
    time.sleep(1)
    assert stored_host(store, 'c1').vcpus_used == 0
    seen = []
    mirror.read_all(lambda: seen.append(stored_host(store, 'c1').vcpus_used))
    wait_until(lambda: seen)
    assert seen == [2]


def test_a_cell_is_read_where_its_mapping_is_said_to_lead(nova, store, start):
    nova.add_host('c1')
    named, other = nova.cells
    for number, name in enumerate(('first', 'second'), 2):
        nova.update(
            nova.api, 'cell_mappings', {'id': number}, database_connection=name
        )
    urls = {'first': named, 'second': other}
    start(cell_url=lambda url, base: urls[url])
    wait_until(lambda: [*hosts(store)] == ['c1'])


def test_nothing_is_written_where_nothing_differs(nova, store, start):
    nova.add_host('c1')
    nova.add_instance('c1')
    start(full_interval=0.3)
    # Instances are written first.
    wait_until(lambda: hosts(store))
    before = load_snapshot(store).revision
    time.sleep(1.5)
    assert load_snapshot(store).revision == before


@on_each_server
def test_the_databases_cannot_be_written(nova):
    database = ReadOnlyDatabase(nova.cells[0], 3, 20)
    with (
        contextlib.closing(database),
        pytest.raises(sa.exc.DBAPIError),
        database.reading() as conn,
    ):
        conn.exec_driver_sql("UPDATE services SET host = 'x'")


def test_a_daemon_places_instances_on_mirrored_hosts(nova, store):
    nova.add_host('c1')
    nova.add_host('c2', vcpus=1, cpu_allocation_ratio=1.0)
    url = f'inproc://{uuid.uuid4().hex}/'
    conf = new_conf(
        database__connection=store.engine.url.render_as_string(
            hide_password=False
        ),
        compute__api_database=nova.api,
    )
    daemon = Daemon(conf, url)
    daemon.start()
    try:
        wait_until(lambda: len(hosts(store)) == 2)
        with connected(url, conf.scheduler.topic) as client:
            answer = client.select_destinations(
                CONTEXT, {'flavor': {**SMALL, 'vcpus': 2}}
            )
        assert hosts_of(answer) == ['c1']
    finally:
        daemon.stop()


def test_a_rebuild_is_looked_up_before_the_next_poll(nova, store):
    nova.add_host('c1', vcpus=1, cpu_allocation_ratio=1.0)
    url, topic = f'inproc://{uuid.uuid4().hex}/', new_topic()
    conf = new_conf(
        database__connection=store.engine.url.render_as_string(
            hide_password=False
        ),
        compute__api_database=nova.api,
        compute__poll_interval=3600.0,
        compute__enabled=True,
        compute__topic=topic,
    )
    daemon = Daemon(conf, url)
    daemon.start()
    caller = ComputeCaller(url, topic)
    try:
        wait_until(lambda: hosts(store))
        instance = nova.add_instance('c1')
        reply = caller.select(
            uuids=[instance],
            flavor=flavor(vcpus=2),
            force_hosts=['c1'],
            scheduler_hints={'_nova_check_type': ['rebuild']},
        )
        assert compute.hosts_of(reply) == [['c1']]
        assert instances(store) == {instance: 'c1'}
    finally:
        caller.transport.cleanup()
        daemon.stop()


def test_only_new_claims_expire_and_not_while_a_cell_is_away(
    nova, store, monkeypatch
):
    monkeypatch.setattr(
        'scheduler_service.compute.follower.mirror._CURRENT_S', 3.0
    )
    for number, name in enumerate(('c1', 'c2'), 1):
        nova.add_host(name, cell=number)
    url = f'inproc://{uuid.uuid4().hex}/'
    conf = new_conf(
        database__connection=store.engine.url.render_as_string(
            hide_password=False
        ),
        compute__api_database=nova.api,
        scheduler__claim_timeout=2.0,
    )
    daemon = Daemon(conf, url)
    daemon.start()
    try:
        wait_until(lambda: len(hosts(store)) == 2)
        with connected(url, conf.scheduler.topic) as client:

            def select(**request: Any) -> Any:
                asked = {'flavor': SMALL, **request.pop('asked', {})}
                answer = client.select_destinations(CONTEXT, asked, **request)
                (placed,) = answer['placements']
                return placed['instance_uuid'], placed['selected']['host']

            # It is resized, and nobody confirms that for longer.
            moved, old = select()
            nova.add_instance(old, int(old[1]), uuid=moved)
            wait_until(lambda: claim_state(store, moved) == 'confirmed')
            _, target = select(
                move=True,
                asked={'instance_uuids': [moved], 'ignore_hosts': [old]},
            )
            new, _ = select()
            follows(lambda: claim_state(store, new) is None)
            assert held_on(store, moved) == {old, target}
            nova.run(nova.cells[1], 'ALTER TABLE services RENAME TO gone')
            follows(lambda: stored_host(store, 'c2').state == 'down')
            time.sleep(3.5)
            new, _ = select()
            time.sleep(4)
            assert claim_state(store, new) == 'claimed'
            nova.run(nova.cells[1], 'ALTER TABLE gone RENAME TO services')
            follows(lambda: claim_state(store, new) is None)
            assert held_on(store, moved) == {old, target}
    finally:
        daemon.stop()


def held_on(store: Any, instance: str) -> set[str]:
    """Return the hosts on which an instance has allocations."""
    held, known = schema.allocations.c, schema.hosts.c
    query = (
        sa.select(known.host)
        .join_from(schema.allocations, schema.hosts, held.host_id == known.id)
        .where(held.consumer_uuid == instance)
    )
    with store.reading() as conn:
        return set(conn.execute(query).scalars())
