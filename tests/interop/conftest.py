"""Daemons that packages of other services call, as they come."""

import dataclasses
import json
import pathlib
import subprocess
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduler_service.cmd.daemon import Daemon
from scheduler_service.compute.placement import options as placement_options
from scheduler_service.compute.placement.client import PlacementClient
from scheduler_service.store.connection import Store
from tests.support import servers, shipped
from tests.support.compute import HOSTS
from tests.support.interop import NOVA_ENVIRONMENT, openstack
from tests.support.nova_databases import NovaDatabases
from tests.support.paths import ROOT
from tests.support.placement_service import (
    PlacementService,
    daemon_options,
    placement_service,
)
from tests.support.services import new_conf
from tests.support.stores import import_inventory

FILTERS = 'filter_scheduler__enabled_filters'
_LIMIT_S = 300


@dataclasses.dataclass
class NovaDaemon:
    """A daemon on a virtual host of its own, with its default topic."""

    daemon: Daemon
    store: Store
    url: str


@pytest.fixture
def make_daemon(
    make_store: Any, rabbitmq: tuple[servers.Server, str]
) -> Iterator[Callable[..., NovaDaemon]]:
    """Give a function that starts a daemon in this process."""
    running: list[NovaDaemon] = []

    def make(**more: Any) -> NovaDaemon:
        store = make_store('postgresql')
        import_inventory(store, HOSTS)
        url = servers.new_vhost(*rabbitmq)
        conf = new_conf(
            database__connection=store.engine.url.render_as_string(
                hide_password=False
            ),
            scheduler__topic='scheduler-service',
            compute__enabled=True,
            **{FILTERS: shipped.filters(), **more},
        )
        daemon = Daemon(conf, url)
        daemon.start()
        running.append(NovaDaemon(daemon, store, url))
        return running[-1]

    yield make
    for one in running:
        one.daemon.stop()


@pytest.fixture(scope='session')
def service(postgresql: Any) -> Iterator[PlacementService]:
    """A placement service."""
    with placement_service(postgresql[1]) as running:
        yield running


@pytest.fixture(scope='session')
def nova_base(postgresql: Any) -> Iterator[NovaDatabases]:
    """The compute service's databases."""
    made = NovaDatabases(postgresql[1])
    yield made
    made.close()


@pytest.fixture(scope='session')
def nova() -> pathlib.Path:
    """The interpreter of an environment with nova in it."""
    return openstack() / 'bin/python'


@pytest.fixture
def as_nova(nova: pathlib.Path, tmp_path: pathlib.Path) -> Callable[..., Any]:
    """Give a function that has nova's client send recorded cases.

    It takes the bus, the files, the highest version to use, and for how many
    seconds nova waits for a sign of life.
    """

    def run(
        url: str, *paths: str, version: str = '', patience_s: int = 60
    ) -> Any:
        conf = tmp_path / 'nova.conf'
        levels = f'[upgrade_levels]\nscheduler = {version}\n'
        conf.write_text(
            f'[DEFAULT]\ntransport_url = {url}\n'
            f'rpc_response_timeout = {patience_s}\n'
            f'{levels if version else ""}'
        )
        script = ROOT / 'tests/interop/nova_caller.py'
        done = subprocess.run(
            [nova, '-W', 'ignore', script, conf, *paths],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            cwd='/',
            env=NOVA_ENVIRONMENT,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def cloud(
    nova_base: NovaDatabases, service: PlacementService
) -> NovaDatabases:
    """Databases of a cloud without hosts; placement has those of before."""
    nova_base.reset()
    return nova_base


@pytest.fixture
def placement_client(service: PlacementService) -> PlacementClient:
    """A client with the daemon's options."""
    return PlacementClient(
        placement_options.new_adapter(daemon_options(service))
    )


@pytest.fixture
def start_claiming(
    cloud: NovaDatabases, service: PlacementService, make_store: Any
) -> Iterator[Any]:
    """Give a function that starts a daemon; it has ``store``.

    With ``after`` it comes after another one, which is stopped.
    """
    running: list[Daemon] = []

    def make(after: Daemon | None = None, **more: Any) -> Daemon:
        store = make_store('postgresql') if not running else running[0].store
        conf = daemon_options(
            service,
            database__connection=store.engine.url.render_as_string(
                hide_password=False
            ),
            compute__api_database=cloud.api,
            compute__use_placement=True,
            **{FILTERS: shipped.filters(), **more},
        )
        if after is not None:
            after.stop()
            running.remove(after)
        daemon = Daemon(conf, f'inproc://{uuid.uuid4().hex}/')
        daemon.start()
        running.append(daemon)
        return daemon

    yield make
    for daemon in running:
        daemon.stop()
