"""The placement service itself, on loopback, without an identity service."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from tests.support import interop
from tests.support.databases import new_database
from tests.support.servers import free_port
from tests.support.services import new_conf
from tests.support.waiting import LIMIT_S, wait_until

# Runs the WSGI application of the package, with a thread for each connection.
# Several may share a port: the system deals out the connections.
_RUN = """
import os, socketserver
from wsgiref import simple_server
from placement.wsgi.api import application
class Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    allow_reuse_port = True
    daemon_threads = True
    request_queue_size = 64
class Quiet(simple_server.WSGIRequestHandler):
    def log_message(self, *args):
        pass
server = simple_server.make_server(
    '127.0.0.1', int(os.environ['PORT']), application, Server, Quiet
)
server.serve_forever()
"""


class PlacementService:
    """A placement service that runs.

    :param workers: how many processes serve it
    :ivar database: URL of its database
    :ivar url: of its API
    """

    def __init__(self, base: str, workers: int = 1) -> None:
        # The service fails with the newer driver.
        self.database = new_database(base).replace('+psycopg:', '+psycopg2:')
        self._port = free_port()
        self._folder = tempfile.TemporaryDirectory()
        # It insists on a file, and takes its options from the environment.
        (pathlib.Path(self._folder.name) / 'placement.conf').touch()
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = f'http://127.0.0.1:{self._port}'

    @property
    def options(self) -> str:
        """The lines of a configuration file that name it."""
        return (
            f'[placement]\nauth_type = admin_token\nendpoint = {self.url}\n'
            f'token = admin\nendpoint_override = {self.url}\n'
        )

    def start(self) -> None:
        """Start it, or start it again; wait until it answers."""
        # The first one makes the tables.
        self._launch()
        wait_until(self._is_up)
        for _ in range(self._workers - 1):
            self._launch()

    def _is_up(self) -> bool:
        if self._processes[0].poll() is not None:
            # Its database has just been started itself.
            self._processes.clear()
            self._launch()
        return self._answers()

    def _launch(self) -> None:
        folder = interop.openstack()
        process = subprocess.Popen(
            [folder / 'bin' / 'python', '-c', _RUN],
            env={
                'PATH': os.environ['PATH'],
                'PORT': str(self._port),
                'OS_PLACEMENT_DATABASE__CONNECTION': self.database,
                'OS_PLACEMENT_DATABASE__SYNC_ON_STARTUP': 'true',
                'OS_API__AUTH_STRATEGY': 'noauth2',
                'OS_PLACEMENT_CONFIG_DIR': self._folder.name,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._processes.append(process)

    def _answers(self) -> bool:
        try:
            self.call('GET', '/')
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """Stop it."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()

    def clean(self) -> None:
        """Remove its files."""
        self._folder.cleanup()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call the API as an admin; return what it answers.

        :raises urllib.error.HTTPError: it refuses
        """
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {
                'X-Auth-Token': 'admin',
                'Content-Type': 'application/json',
                'Accept': 'application/json',
                'OpenStack-API-Version': 'placement 1.36',
            },
            method=method,
        )
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def add_provider(
        self,
        uuid: str,
        name: str,
        traits: Any = (),
        parent: str | None = None,
        **amounts: Any,
    ) -> None:
        """Add a provider.

        :param parent: uuid of the provider above it
        :param amounts: resource class -> total, or a whole inventory
        """
        body = {'uuid': uuid, 'name': name, 'parent_provider_uuid': parent}
        self.call('POST', '/resource_providers', body)
        self.set_inventories(uuid, **amounts)
        for trait in traits:
            if trait.startswith('CUSTOM_'):
                self.call('PUT', f'/traits/{trait}')
        if traits:
            self.call(
                'PUT',
                f'/resource_providers/{uuid}/traits',
                {
                    'resource_provider_generation': self.generation(uuid),
                    'traits': list(traits),
                },
            )

    def generation(self, uuid: str) -> int:
        """Return the generation of a provider."""
        found = self.call('GET', f'/resource_providers/{uuid}')
        return int(found['generation'])

    def set_inventories(self, uuid: str, **amounts: Any) -> None:
        """Replace the inventories of a provider."""
        for name in amounts:
            if name.startswith('CUSTOM_'):
                self.call('PUT', f'/resource_classes/{name}')
        self.call(
            'PUT',
            f'/resource_providers/{uuid}/inventories',
            {
                'resource_provider_generation': self.generation(uuid),
                'inventories': {
                    name: one if isinstance(one, dict) else {'total': one}
                    for name, one in amounts.items()
                },
            },
        )

    def held(self, consumer: str) -> dict[str, dict[str, int]]:
        """Return what a consumer has: provider -> class -> amount."""
        found = self.call('GET', f'/allocations/{consumer}')
        return {
            uuid: one['resources']
            for uuid, one in found['allocations'].items()
        }

    def take(
        self,
        consumer: str,
        provider: str,
        generation: int | None = None,
        **amounts: int,
    ) -> None:
        """Give a consumer allocations, as another client would.

        :param generation: of a consumer that has some
        """
        self.call(
            'PUT',
            f'/allocations/{consumer}',
            {
                'allocations': {provider: {'resources': amounts}},
                'project_id': 'p',
                'user_id': 'u',
                'consumer_generation': generation,
            },
        )

    def usages(self, provider: str) -> dict[str, int]:
        """Return what is used of a provider."""
        path = f'/resource_providers/{provider}/usages'
        found: dict[str, int] = self.call('GET', path)['usages']
        return found


def daemon_options(service: PlacementService, **more: Any) -> Any:
    """Return options of a daemon for a service without authentication.

    :param more: ``group__name`` values
    """
    conf = new_conf(**more)
    from keystoneauth1 import loading

    loading.register_auth_conf_options(conf, 'placement')
    loading.register_adapter_conf_options(conf, 'placement')
    conf.set_override('auth_type', 'admin_token', 'placement')
    for option in loading.get_auth_plugin_conf_options('admin_token'):
        conf.register_opt(option, 'placement')
    conf.set_override('endpoint', service.url, 'placement')
    conf.set_override('token', 'admin', 'placement')
    return conf


@contextlib.contextmanager
def placement_service(
    base: str, workers: int = 1
) -> Iterator[PlacementService]:
    """Run a placement service.

    :param base: URL of a database server without the database; for SQLite,
        of a folder
    :param workers: how many processes serve it
    """
    service = PlacementService(base, workers)
    try:
        service.start()
        yield service
    finally:
        service.stop()
        service.clean()
