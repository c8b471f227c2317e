"""A small cloud: nova's own services of the index on fake hypervisors.

A conductor, two computes and what nova-api does, with a placement service and
a network service that has no networks. It has no scheduler of its own: a test
adds our daemon, or nova-scheduler.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import pathlib
import signal
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

from tests.support import failures, interop
from tests.support.nova_databases import NovaDatabases, cell_uuid
from tests.support.paths import ROOT
from tests.support.placement_service import PlacementService
from tests.support.waiting import wait_until

HOSTS = ('c1', 'c2')
CELL0, CELL1 = 'cell0', 'cell1'
# Options on queues, of these services and of what calls them.
QUORUM = 'amqp_durable_queues = true\nrabbit_quorum_queue = true\n'
_PROGRAMS = ROOT / 'tests' / 'interop'


class Failed(Exception):
    """A call of nova's API ended with an error."""


class _NoNetworks(http.server.BaseHTTPRequestHandler):
    """Answers each question for things of a network with: there are none."""

    def do_GET(self) -> None:
        kind = urllib.parse.urlsplit(self.path).path.rpartition('/')[2]
        body = json.dumps({kind.replace('-', '_'): []}).encode()
        self.send_response(200)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Keep the output of the tests free of requests."""


@contextlib.contextmanager
def network_service() -> Iterator[str]:
    """Run a network service without networks; yield its URL."""
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), _NoNetworks)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f'http://127.0.0.1:{server.server_port}'
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class NovaCloud:
    """The services, each a process, and calls of nova's API.

    :param databases: in which nothing was done yet
    :param bus: URL of a virtual host of RabbitMQ
    :param networks: URL of a network service
    :param options: more of the services' options
    """

    def __init__(
        self,
        folder: pathlib.Path,
        databases: NovaDatabases,
        bus: str,
        placement: PlacementService,
        networks: str,
        options: str = '',
    ) -> None:
        self._more_options = options
        self.databases = databases
        self.bus = bus
        self.placement = placement
        # uuids of the nodes, which are those of their providers, by host.
        self.nodes: dict[str, str] = {}
        self._folder = folder
        self._networks = networks
        self._bin = interop.openstack() / 'bin'
        self._processes: list[subprocess.Popen[str]] = []
        self._shown: list[failures.Output] = []
        (folder / 'failed').mkdir()

    def start(self) -> None:
        """Map the cells, start the services, wait for both hosts."""
        self.map_cells()
        self.launch('nova-conductor')
        for host in HOSTS:
            self.launch(str(_PROGRAMS / 'nova_compute.py'), host)
        self.start_api()
        wait_until(self._has_hosts, pause_s=0.5)

    def map_cells(self) -> None:
        """Map cell0, and a cell whose bus is the cloud's."""
        # The second cell's database is that of cell0 here.
        cell1, cell0 = self.databases.cells
        self._map_cell(1, CELL0, '00000000-0000-0000-0000-000000000000',
                       cell0, 'none:///')  # fmt: skip
        self._map_cell(2, CELL1, cell_uuid(1), cell1, self.bus)

    def start_api(self) -> None:
        """Start what makes the calls."""
        self._api = self.launch(
            str(_PROGRAMS / 'nova_api.py'),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def _map_cell(
        self, number: int, name: str, uuid: str, database: str, bus: str
    ) -> None:
        self.databases.insert(
            self.databases.api, 'cell_mappings', id=number, uuid=uuid,
            name=name, database_connection=database, transport_url=bus,
            disabled=False,
        )  # fmt: skip

    def _has_hosts(self) -> bool:
        self.nodes = self.call('hosts')
        path = '/resource_providers?resources=VCPU:1'
        found = self.placement.call('GET', path)['resource_providers']
        ready = {one['uuid'] for one in found}
        return set(self.nodes) == set(HOSTS) and (
            ready >= set(self.nodes.values())
        )

    def launch(
        self, program: str, host: str = 'control', **pipes: Any
    ) -> subprocess.Popen[str]:
        """Start a program of nova's, or one of ours that uses nova.

        :param host: its name of the machine
        """
        name = pathlib.Path(program).name
        own = self._folder / f'{name}-{host}'
        own.mkdir(exist_ok=True)
        conf = own / 'nova.conf'
        conf.write_text(self._options(host, own))
        command = [str(conf)]
        if name != 'nova_api.py':
            command.insert(0, '--config-file')
        with self.log(name, host).open('w') as log:
            pipes.setdefault('stdout', log)
            process = subprocess.Popen(
                [self._bin / 'python', '-W', 'ignore',
                 self._bin / program, *command],
                stderr=log, text=True, cwd=own, start_new_session=True,
                env={
                    'PATH': os.environ['PATH'],
                    **interop.NOVA_ENVIRONMENT,
                    'FAILED_BUILDS': str(self._folder / 'failed'),
                },
                **pipes,
            )  # fmt: skip
        self._processes.append(process)
        written = self.log(name, host)
        self._shown.append(
            failures.Output(written.stem, lambda: failures.tail(written))
        )
        return process

    def _options(self, host: str, folder: pathlib.Path) -> str:
        # One attempt at a time counts: no ratio makes hosts look larger.
        return (
            f'[DEFAULT]\nhost = {host}\nstate_path = {folder}\n'
            f'transport_url = {self.bus}\nuse_stderr = true\n'
            # Only its log is read for what it took.
            f'debug = {folder.name.startswith("nova-scheduler")}\n'
            'compute_driver = fake.FailingDriver\n'
            'allow_resize_to_same_host = true\n'
            'cpu_allocation_ratio = 1.0\nram_allocation_ratio = 1.0\n'
            'disk_allocation_ratio = 1.0\nreserved_host_memory_mb = 0\n'
            'heal_instance_info_cache_interval = -1\n'
            'rpc_response_timeout = 60\nlong_rpc_timeout = 60\n'
            f'[api_database]\nconnection = {self.databases.api}\n'
            f'[database]\nconnection = {self.databases.cells[0]}\n'
            f'[oslo_concurrency]\nlock_path = {folder}\n'
            '[oslo_messaging_notifications]\ndriver = noop\n'
            '[quota]\ndriver = nova.quota.NoopQuotaDriver\n'
            '[conductor]\nworkers = 1\n[scheduler]\nworkers = 1\n'
            f'{self.placement.options}'
            f'[neutron]\nauth_type = none\n'
            f'endpoint_override = {self._networks}\n'
            # Only named in notifications, never called.
            f'[glance]\napi_servers = {self._networks}\n'
            f'{self._more_options}'
        )

    def log(self, name: str, host: str = 'control') -> pathlib.Path:
        """Return the log of a program."""
        return self._folder / f'{name}-{host}.log'

    def call(self, verb: str, **args: Any) -> Any:
        """Make a call of ``nova_api.py``; return its result.

        :raises Failed: nova raised an error
        """
        assert self._api.stdin is not None
        assert self._api.stdout is not None
        self._api.stdin.write(json.dumps({'verb': verb, **args}) + '\n')
        self._api.stdin.flush()
        for line in self._api.stdout:
            if line.startswith('ANSWER '):
                answer = json.loads(line.removeprefix('ANSWER '))
                if 'error' in answer:
                    raise Failed(answer['error'])
                return answer['result']
        raise AssertionError(self.log('nova_api.py').read_text()[-3000:])

    def failed_on(self, server: str) -> list[str]:
        """Return the hosts that tried to build a server, and failed."""
        path = self._folder / 'failed' / server
        return path.read_text().split() if path.exists() else []

    def consumers(self, host: str) -> set[str]:
        """Return the servers with allocations on a host."""
        path = f'/resource_providers/{self.nodes[host]}/allocations'
        return set(self.placement.call('GET', path)['allocations'])

    def end(self, process: subprocess.Popen[str]) -> None:
        """End a program at once, with its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    @contextlib.contextmanager
    def scheduler(self) -> Iterator[pathlib.Path]:
        """Run nova-scheduler; yield its log."""
        process = self.launch('nova-scheduler')
        log = self.log('nova-scheduler')
        try:
            # Written once it consumes requests.
            wait_until(lambda: 'Join ServiceGroup' in log.read_text())
            yield log
        finally:
            self.end(process)

    def stop(self) -> None:
        """End all programs."""
        for process in self._processes:
            self.end(process)
        for shown in self._shown:
            shown.end()
