"""nova's own conductor and computes build servers where our daemon says."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import loading
from tests.support import nova_cloud, processes, shipped
from tests.support.databases import migrated_database
from tests.support.nova_cloud import CELL0, CELL1, HOSTS, NovaCloud
from tests.support.paths import PROGRAMS
from tests.support.stores import (
    audit_findings,
    claim_state,
    load_snapshot,
    stored_host,
)
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.functional,
    pytest.mark.broker,
    pytest.mark.db,
]
# A host has 2 vCPUs, 8192 MB and 1028 GB.
SMALL = ('small', 1, 512, 1)
TINY = ('tiny', 0, 64, 0)
WHOLE = ('whole', 2, 512, 1)
LARGE = ('large', 1, 1024, 1)
LARGER = ('larger', 1, 2048, 1)


class Daemon:
    """Our daemon as a process, beside a cloud."""

    def __init__(self, folder: Any, cloud: NovaCloud, database: str) -> None:
        self.store = Store.connect(database)
        self._config = folder / 'scheduler.conf'
        self._cloud = cloud
        self._process: processes.Process | None = None
        self._serves = False

    def start(self, serve: bool) -> None:
        """Start it, unless it runs like this; wait until it knows the hosts.

        :param serve: whether it takes the requests of the compute service
        """
        if self._process is not None:
            if self._serves == serve:
                return
            self.stop()
        url = self.store.engine.url.render_as_string(hide_password=False)
        text = shipped.of_cloud(self._cloud, url, nova_cloud.QUORUM)
        enabled = f'enabled = {serve}\nplacement_interval = 5\n'
        assert text.count('enabled = false\n') == 1
        self._config.write_text(text.replace('enabled = false\n', enabled))
        self._serves = serve
        self._process = processes.launch(self._config)
        self._process.wait_for('Ready')
        wait_until(self._knows_hosts)

    def _knows_hosts(self) -> bool:
        """Whether the hosts are there, with the capacity of placement."""
        found = [stored_host(self.store, name) for name in HOSTS]
        return all(one and one.state == 'up' and one.vcpus for one in found)

    def has_free_hosts(self) -> bool:
        """Whether nothing is in use on the hosts."""
        found = [stored_host(self.store, name) for name in HOSTS]
        return not any(one.vcpus_used for one in found)

    def sees_all(self) -> bool:
        """Whether it decides by all that the store has at the moment."""
        with self.store.reading() as conn:
            newest, _ = loading.newest_change(conn)
        done = subprocess.run(
            [PROGRAMS / 'scheduler-manage', '--config-file', self._config,
             'ping', '-f', 'json'],
            check=True, capture_output=True, timeout=LIMIT_S,
        )  # fmt: skip
        (daemon,) = json.loads(done.stdout)
        return bool(daemon['revision'] >= newest)

    def zones(self) -> dict[str, str]:
        """Return the zone of each host, empty where it has none."""
        hosts = load_snapshot(self.store).hosts
        return {
            hosts.host_at(row): hosts.zone_at(row, '')
            for row in range(len(hosts))
        }

    def has(self, server: str, host: str) -> bool:
        """Whether the store has a server on a host."""
        table = schema.instances
        query = sa.select(table.c.host).where(table.c.uuid == server)
        with self.store.reading() as conn:
            return conn.execute(query).scalar() == host

    def memory(self, server: str, host: str) -> tuple[Any, ...]:
        """Return a claim's state, the MB that it holds, and the host's use."""
        held = schema.allocations.c
        query = sa.select(held.amount).where(
            held.consumer_uuid == server, held.resource_class == 'MEMORY_MB'
        )
        with self.store.reading() as conn:
            amount = conn.execute(query).scalar()
        used = stored_host(self.store, host).memory_mb_used
        return claim_state(self.store, server), amount, used

    def age_claims(self) -> None:
        """Make claims so old that it looks whether they are still needed."""
        with self.store.engine.begin() as conn:
            conn.execute(sa.update(schema.stage_records).values(made_at=1))

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it with a signal."""
        if self._process is not None:
            self._process.end(number)
            self._process.remove()
            self._process = None

    def decisions(self) -> int:
        """Return how many requests it has decided."""
        with self.store.reading() as conn:
            query = sa.select(sa.func.count()).select_from(schema.decisions)
            return conn.execute(query).scalar_one()

    def close(self) -> None:
        """Kill it if it runs."""
        if self._process is not None:
            self._process.remove()
        self.store.dispose()


class Asking:
    """Asks for hosts and casts to all schedulers, over and over, in a thread.

    :ivar answers: (server, host, what it had in placement) of each request
    :ivar casts: the names that were cast
    """

    def __init__(self, cloud: NovaCloud) -> None:
        self.answers: list[tuple[str, str, Any]] = []
        self.casts: list[str] = []
        self._cloud = cloud
        self._stopping = threading.Event()

    def __enter__(self) -> Asking:
        self._pool = ThreadPoolExecutor(1)
        self._done = self._pool.submit(self._run)
        return self

    def __exit__(self, *args: object) -> None:
        self._stopping.set()
        self._pool.shutdown()
        self._done.result()

    def _run(self) -> None:
        while not self._stopping.is_set():
            server = str(uuid.uuid4())
            hosts = self._cloud.call('select', server=server, flavor=TINY)
            held = self._cloud.placement.held(server)
            self._cloud.placement.call('DELETE', f'/allocations/{server}')
            self.answers.append((server, hosts[0], held))
            self.casts.append(f'cast-{server}')
            self._cloud.call('sync', host=self.casts[-1])

    def more(self, count: int = 5) -> None:
        """Wait until a number of further requests were answered."""
        wanted = len(self.answers) + count
        wait_until(lambda: self._done.done() or len(self.answers) >= wanted)
        assert not self._done.done(), self._done.exception()


@pytest.fixture(scope='module')
def beside(
    cloud: NovaCloud, mariadb: Any, tmp_path_factory: Any
) -> Iterator[Daemon]:
    """Our daemon beside the cloud; it has not been started."""
    folder = tmp_path_factory.mktemp('daemon')
    made = Daemon(folder, cloud, migrated_database(mariadb[1]))
    yield made
    made.close()


@pytest.fixture
def daemon(cloud: NovaCloud, beside: Daemon) -> Iterator[Daemon]:
    """Our daemon in the place of nova-scheduler, with free hosts."""
    beside.start(serve=True)
    wait_until(beside.has_free_hosts)
    yield beside
    delete(cloud, *cloud.call('servers'))


def create(cloud: NovaCloud, flavor: Any = SMALL, **how: Any) -> list[str]:
    """Have servers built; return their uuids."""
    return cloud.call('create', flavor=flavor, **how)


def built(cloud: NovaCloud, server: str) -> dict[str, Any]:
    """Wait until a server is active, or failed; return it."""

    def done() -> Any:
        found = cloud.call('show', server=server)
        # The fault of one that failed is written after its state.
        over = found['state'] == 'active' or (
            found['state'] == 'error' and found['fault']
        )
        return over and found

    return wait_until(done, pause_s=0.1)


def delete(cloud: NovaCloud, *servers: str) -> None:
    """Delete servers; wait until they are gone."""
    for server in servers:
        cloud.call('delete', server=server)
    wait_until(
        lambda: (
            not any(cloud.call('show', server=server) for server in servers)
        ),
        pause_s=0.1,
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
    assert daemon.has(server, found['host'])


@pytest.fixture
def zones(cloud: NovaCloud, daemon: Daemon) -> Iterator[dict[str, str]]:
    """Two zones of a host each, by host."""
    made = dict(zip(HOSTS, ('east', 'west'), strict=True))
    cloud.call('make_zones', zones=made)
    wait_until(lambda: daemon.zones() == made)
    yield made
    delete(cloud, *cloud.call('servers'))
    cloud.call('make_zones', zones={})
    wait_until(lambda: not any(daemon.zones().values()))


def test_servers_and_their_alternates_are_in_the_zone(cloud, daemon, zones):
    for host, zone in zones.items():
        # The second one would be put on the other host, which has more free.
        servers = [*create(cloud, zone=zone), *create(cloud, zone=zone)]
        found = [built(cloud, server)['host'] for server in servers]
        assert found == [host, host]
        delete(cloud, *servers)
        wait_until(daemon.has_free_hosts)
        # Once its host failed, there is no other in its zone.
        (server,) = create(cloud, zone=zone, metadata={'fails': 'first'})
        assert built(cloud, server)['state'] == 'error'
        assert cloud.failed_on(server) == [host]


def test_a_build_that_fails_everywhere_leaves_nothing(cloud, daemon):
    (server,) = create(cloud, metadata={'fails': 'always'})
    found = built(cloud, server)
    assert (found['state'], found['host']) == ('error', None)
    assert {*cloud.failed_on(server)} == set(HOSTS)
    wait_until(lambda: cloud.placement.held(server) == {})
    wait_until(lambda: claim_state(daemon.store, server) is None)


def bandwidth(amount: int) -> dict[str, Any]:
    """Return a port that asks for bandwidth."""
    return {
        'id': str(uuid.uuid4()),
        'resources': {'CUSTOM_BANDWIDTH': amount},
        'trait': 'CUSTOM_PHYSNET',
    }


def test_a_port_gets_its_bandwidth_on_another_host_or_none(cloud, daemon):
    cards = {host: str(uuid.uuid4()) for host in HOSTS}
    for host, card in cards.items():
        cloud.placement.add_provider(
            card, card, ['CUSTOM_PHYSNET'], cloud.nodes[host],
            CUSTOM_BANDWIDTH=1000,
        )  # fmt: skip
    for host in HOSTS:
        wait_until(
            lambda of=host: (
                'CUSTOM_BANDWIDTH' in stored_host(daemon.store, of).resources
            ),
        )
    # An alternate is chosen by what it sees, and not looked for again.
    wait_until(daemon.sees_all)
    # The first host fails, and the conductor claims the alternate as our
    # answer says.
    (first,) = create(cloud, metadata={'fails': 'first'}, port=bandwidth(600))
    found = built(cloud, first)
    assert found['state'] == 'active', found
    (failed,) = cloud.failed_on(first)
    assert {failed, found['host']} == set(HOSTS)
    assert cloud.placement.held(first) == {
        cloud.nodes[found['host']]: {
            'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1,
        },
        cards[found['host']]: {'CUSTOM_BANDWIDTH': 600},
    }  # fmt: skip
    wait_until(lambda: daemon.has(first, found['host']))
    # Only the card of the other host has that much left.
    (second,) = create(cloud, port=bandwidth(600))
    assert built(cloud, second)['host'] == failed
    (third,) = create(cloud, port=bandwidth(600))
    found = built(cloud, third)
    assert (found['state'], found['cell']) == ('error', CELL0)
    assert found['host'] is None
    assert found['fault'] == (
        'No valid host was found. There are not enough hosts available.'
    )
    assert cloud.placement.held(third) == {}
    delete(cloud, first, second, third)
    wait_until(
        lambda: (
            not any(
                cloud.placement.usages(card)['CUSTOM_BANDWIDTH']
                for card in cards.values()
            )
        ),
    )


def test_deletes_make_room_again(cloud, daemon):
    first = create(cloud, count=4)
    found = [built(cloud, server) for server in first]
    assert [one['state'] for one in found] == ['active'] * 4
    assert sorted(one['host'] for one in found) == ['c1', 'c1', 'c2', 'c2']
    (fifth,) = create(cloud)
    assert built(cloud, fifth)['state'] == 'error'
    delete(cloud, fifth, *first)
    # nova deletes the rows first, and then the allocations.
    wait_until(
        lambda: not any(cloud.placement.held(server) for server in first),
    )
    wait_until(daemon.has_free_hosts)
    (again,) = create(cloud)
    assert built(cloud, again)['state'] == 'active'


def resizes(cloud: NovaCloud) -> Iterator[tuple[str, str]]:
    """Resize a server on the only host with room, for good and then not.

    Yields the server and its host once nova and placement have done a step.
    """
    (other,) = create(cloud, WHOLE)
    built(cloud, other)
    (server,) = create(cloud)
    host = built(cloud, server)['host']

    def facts() -> Any:
        found = cloud.call('show', server=server)
        assert found['host'] == host, found
        node, has = cloud.nodes[host], cloud.placement.held(server)
        used = cloud.placement.usages(node)['MEMORY_MB']
        # While a host is looked for it has nothing.
        held = has.get(node, {}).get('MEMORY_MB')
        return found['state'], found['flavor'], held, used

    for verb, more, *expected in (
        ('resize', {'flavor': LARGE}, 'resized', 'large', 1024, 512 + 1024),
        ('confirm', {}, 'active', 'large', 1024, 1024),
        ('resize', {'flavor': LARGER}, 'resized', 'larger', 2048, 1024 + 2048),
        ('revert', {}, 'active', 'large', 1024, 1024),
    ):
        cloud.call(verb, server=server, **more)
        wait_until(lambda e=expected: facts() == (*e,), pause_s=0.1)
        yield server, host


def test_a_server_is_resized_on_its_host(cloud, daemon):
    books = (
        ('confirmed', 1024, 512 + 1024),
        ('confirmed', 1024, 1024),
        ('confirmed', 2048, 1024 + 2048),
        # As its host reports it from then on.
        (None, None, 1024),
    )
    for where, expected in zip(resizes(cloud), books, strict=True):
        wait_until(lambda w=where, e=expected: daemon.memory(*w) == e)
    assert audit_findings(daemon.store) == []


def test_nothing_is_left_of_servers_that_came_and_went(cloud, daemon):
    wanted = [create(cloud, metadata={'fails': how})[0]
              for how in ('no', 'first', 'no', 'always')]  # fmt: skip
    # Two of them while hosts are looked for, or tried.
    delete(cloud, *wanted[:2])
    kept = [built(cloud, server) for server in wanted[2:]]
    assert kept[0]['state'] == 'active', kept
    wait_until(lambda: agrees(cloud), pause_s=0.1)
    assert any(cloud.consumers(host) for host in HOSTS)
    delete(cloud, *wanted[2:])
    wait_until(lambda: agrees(cloud), pause_s=0.1)
    # What never came to a cell is not seen there.
    daemon.age_claims()
    wait_until(daemon.has_free_hosts)
    wait_until(lambda: not any(cloud.consumers(host) for host in HOSTS))


@pytest.fixture(scope='module')
def log(cloud: NovaCloud) -> Iterator[pathlib.Path]:
    """The log of nova-scheduler, which runs from here on."""
    with cloud.scheduler() as path:
        yield path


def test_nova_scheduler_beside_us_keeps_its_messages(cloud, beside, log):
    beside.stop()
    decided = beside.decisions()
    with Asking(cloud) as asking:
        asking.more()
        for ends in (signal.SIGTERM, signal.SIGKILL):
            beside.start(serve=False)
            asking.more()
            beside.stop(ends)
            asking.more()
    wait_until(lambda: was_cast(log, asking.casts))
    assert_claimed(cloud, asking)
    assert answered_by_nova(log, asking) == len(asking.answers)
    assert beside.decisions() == decided


def test_both_schedulers_share_requests_until_one_stops(cloud, beside, log):
    beside.start(serve=True)
    decided = beside.decisions()
    with Asking(cloud) as asking:
        asking.more(10)
        beside.stop()
        asking.more(5)
    wait_until(lambda: was_cast(log, asking.casts))
    ours = beside.decisions() - decided
    assert_claimed(cloud, asking)
    assert ours > 0
    assert answered_by_nova(log, asking) == len(asking.answers) - ours


def test_nova_scheduler_resizes_a_server_on_its_host_alike(cloud, beside, log):
    beside.stop()
    assert len([*resizes(cloud)]) == 4
    delete(cloud, *cloud.call('servers'))


def assert_claimed(cloud: NovaCloud, asking: Asking) -> None:
    """Check that each request got a host, and had it in placement."""
    for _, host, held in asking.answers:
        assert held == {cloud.nodes[host]: {'MEMORY_MB': 64}}


def was_cast(log: Any, names: list[str]) -> bool:
    """Whether nova-scheduler heard of all these hosts, each once."""
    text = log.read_text()
    heard = "Received a sync request from an unknown host '{}'"
    return all(text.count(heard.format(name)) == 1 for name in names)


def answered_by_nova(log: Any, asking: Asking) -> int:
    """Return how many of the requests nova-scheduler took."""
    text = log.read_text()
    took = "Starting to schedule for instances: ['{}']"
    return sum(took.format(answer[0]) in text for answer in asking.answers)
