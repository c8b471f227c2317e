"""nova's own conductor and computes build servers where our daemon says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler_service.store.connection import Store
from tests.support import nova_cloud, processes, servers
from tests.support.databases import migrated_database
from tests.support.nova_cloud import CELL0, CELL1, HOSTS, NovaCloud
from tests.support.nova_databases import NovaDatabases
from tests.support.placement_service import placement_service
from tests.support.stores import claim_state, stored_host
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.functional,
    pytest.mark.broker,
    pytest.mark.db,
    pytest.mark.timeout(900),
]
LIMIT_S = 60.0
# A host has 2 vCPUs, 8192 MB and 1028 GB.
SMALL = ('small', 1, 512, 1)
LARGE = ('large', 3, 512, 1)


class Daemon:
    """Our daemon as a process, beside a cloud."""

    def __init__(self, folder: Any, cloud: NovaCloud, database: str) -> None:
        self.store = Store.connect(database)
        self._config = folder / 'scheduler.conf'
        self._cloud = cloud
        self._running: list[processes.Process] = []

    def start(self, serve: bool) -> processes.Process:
        """Start it.

        :param serve: whether it takes the place of nova-scheduler
        """
        url = self.store.engine.url.render_as_string(hide_password=False)
        self._config.write_text(
            f'[DEFAULT]\ntransport_url = {self._cloud.bus}\n'
            f'[database]\nconnection = {url}\n'
            f'[compute]\nenabled = {serve}\nuse_placement = true\n'
            f'api_database = {self._cloud.databases.api}\n'
            f'[placement]\n{self._cloud.placement_options}'
        )
        self._running.append(processes.launch(self._config))
        self._running[-1].wait_for('Ready')
        return self._running[-1]

    def knows_hosts(self) -> bool:
        """Whether the hosts are there, with the capacity of placement."""
        found = [stored_host(self.store, name) for name in HOSTS]
        return all(one and one.state == 'up' and one.vcpus for one in found)

    def wait_for_hosts(self) -> None:
        """Wait until it knows the hosts; say what it logged if it does not."""
        try:
            wait_until(self.knows_hosts, LIMIT_S)
        except AssertionError as error:
            error.add_note(''.join(self._running[-1].lines[-40:]))
            for name in HOSTS:
                error.add_note(str(stored_host(self.store, name)))
            raise

    def close(self) -> None:
        """End it."""
        for one in self._running:
            one.remove()
        self.store.dispose()


@pytest.fixture(scope='module')
def cloud(
    mariadb: Any, rabbitmq: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NovaCloud]:
    """A cloud without a scheduler."""
    folder = tmp_path_factory.mktemp('cloud')
    with contextlib.ExitStack() as stack:
        databases = NovaDatabases(mariadb[1])
        stack.callback(databases.close)
        made = NovaCloud(
            folder,
            databases,
            servers.new_vhost(*rabbitmq),
            stack.enter_context(placement_service(mariadb[1])),
            stack.enter_context(nova_cloud.network_service()),
        )
        stack.callback(made.stop)
        made.start()
        yield made


@pytest.fixture(scope='module')
def beside(
    cloud: NovaCloud, mariadb: Any, tmp_path_factory: Any
) -> Iterator[Daemon]:
    """Our daemon beside the cloud; it has not been started."""
    folder = tmp_path_factory.mktemp('daemon')
    made = Daemon(folder, cloud, migrated_database(mariadb[1]))
    yield made
    made.close()


@pytest.fixture(scope='module')
def daemon(beside: Daemon) -> Daemon:
    """Our daemon in the place of nova-scheduler."""
    beside.start(serve=True)
    beside.wait_for_hosts()
    return beside


def create(cloud: NovaCloud, flavor: Any = SMALL, **how: Any) -> list[str]:
    """Have servers built; return their uuids."""
    return cloud.call('create', flavor=flavor, **how)


def built(cloud: NovaCloud, server: str) -> dict[str, Any]:
    """Wait until a server is active, or failed; return it."""

    def done() -> Any:
        found = cloud.call('show', server=server)
        return found['state'] in ('active', 'error') and found

    return wait_until(done, LIMIT_S)


def delete(cloud: NovaCloud, *servers: str) -> None:
    """Delete servers; wait until they are gone."""
    for server in servers:
        cloud.call('delete', server=server)
    wait_until(
        lambda: not any(cloud.call('show', server=one) for one in servers),
        LIMIT_S,
    )


def agrees(cloud: NovaCloud) -> bool:
    """Whether each server with a host has allocations there, and no other."""
    placed: dict[str, set[str]] = {host: set() for host in HOSTS}
    for server, host in cloud.call('servers').items():
        if host:
            placed[host].add(server)
    return placed == {host: cloud.consumers(host) for host in HOSTS}


def test_a_server_becomes_active(cloud, daemon):
    (server,) = create(cloud)
    found = built(cloud, server)
    assert (found['state'], found['cell']) == ('active', CELL1), found
    assert cloud.placement.held(server) == {
        cloud.nodes[found['host']]: {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1}
    }
    wait_until(lambda: claim_state(daemon.store, server) == 'confirmed')
    delete(cloud, server)


def test_a_server_that_fits_nowhere_is_in_cell0(cloud, daemon):
    (server,) = create(cloud, LARGE)
    found = built(cloud, server)
    assert (found['state'], found['cell']) == ('error', CELL0)
    assert found['host'] is None
    assert found['fault'] == (
        'No valid host was found. There are not enough hosts available.'
    )
    assert cloud.placement.held(server) == {}
    delete(cloud, server)


def test_a_build_that_fails_is_tried_on_the_other_host(cloud, daemon):
    (server,) = create(cloud, metadata={'fails': 'first'})
    found = built(cloud, server)
    (failed,) = cloud.failed_on(server)
    assert found['state'] == 'active'
    assert {failed, found['host']} == set(HOSTS)
    assert [*cloud.placement.held(server)] == [cloud.nodes[found['host']]]
    wait_until(lambda: claim_state(daemon.store, server) == 'confirmed')
    delete(cloud, server)


def test_a_build_that_fails_everywhere_leaves_nothing(cloud, daemon):
    (server,) = create(cloud, metadata={'fails': 'always'})
    found = built(cloud, server)
    assert (found['state'], found['host']) == ('error', None)
    assert {*cloud.failed_on(server)} == set(HOSTS)
    assert cloud.placement.held(server) == {}
    wait_until(lambda: claim_state(daemon.store, server) is None)
    delete(cloud, server)


def test_deletes_make_room_again(cloud, daemon):
    first = create(cloud, count=4)
    found = [built(cloud, server) for server in first]
    assert [one['state'] for one in found] == ['active'] * 4
    assert sorted(one['host'] for one in found) == ['c1', 'c1', 'c2', 'c2']
    (fifth,) = create(cloud)
    assert built(cloud, fifth)['state'] == 'error'
    delete(cloud, fifth, *first)
    assert not any(cloud.placement.held(server) for server in first)
    (again,) = wait_until(
        lambda: (
            built(cloud, (one := create(cloud))[0])['state'] == 'active'
            and one
        ),
        LIMIT_S,
    )
    delete(cloud, again)


def test_nothing_is_left_of_servers_that_came_and_went(cloud, daemon):
    wanted = [create(cloud, metadata={'fails': how} if how else None)[0]
              for how in ('', 'first', '', 'always')]  # fmt: skip
    # One of them while it is still looked for.
    delete(cloud, wanted.pop(0))
    for server in wanted:
        built(cloud, server)
    wait_until(lambda: agrees(cloud), LIMIT_S)
    delete(cloud, *wanted)
    wait_until(lambda: agrees(cloud), LIMIT_S)
    assert not any(cloud.call('servers').values())
    for host in HOSTS:
        assert cloud.consumers(host) == set()
        wait_until(lambda host=host: is_free(daemon.store, host), LIMIT_S)


def is_free(store: Store, host: str) -> bool:
    """Whether the store has nothing in use on a host."""
    found = stored_host(store, host)
    return not (found.vcpus_used or found.memory_mb_used)
