"""``scheduler-quickstart``: try the whole service in one process.

The program runs the daemon on an SQLite file and the in-process bus, and sends
it calls and casts. The files stay in a folder for a closer look. With
``--serve`` it goes on with a cloud of its own making, and serves pages on it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import pathlib
import queue
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from scheduler_service import errors
from scheduler_service.cmd import output, program

if TYPE_CHECKING:
    from scheduler_service.cmd.daemon import Daemon
    from scheduler_service.scheduler import Scheduler

_FOLDER = 'share/scheduler-service'
_SOURCE = pathlib.Path(__file__).resolve().parents[2]
_CONTEXT = {'user_id': 'demo', 'project_id': 'demo', 'roles': ['member']}
_OPERATOR = {'user_id': 'operator', 'roles': ['admin']}
_POOLS = 'attribute, pool_id_attribute, random'
_CONFIG = """\
[DEFAULT]
transport_url = inproc://quickstart/
[database]
connection = sqlite:///{folder}/scheduler.sqlite
[pool_scheduler]
scheduler_filters = {pools}
"""
_PRINTERS = {
    'schedule_zone': output.pool,
    'select_destinations': output.placements,
}
_FLAVOR = {'name': 'm1.small', 'vcpus': 2, 'memory_mb': 4096, 'root_gb': 20}
_NORTH = {'availability_zone': 'north', 'flavor': _FLAVOR}
_FPGA = {'resources:CUSTOM_FPGA': '1', 'trait:CUSTOM_FPGA_CARD': 'required'}
# Title, method and request.
_REQUESTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ('A zone for a golden pool, by call', 'schedule_zone',
     {'name': 'example.org.',
      'attributes': {'pool_level': 'gold', 'pops': 'global'}}),
    ('The same zone again: the same pool', 'schedule_zone',
     {'name': 'example.org.', 'attributes': {}}),
    ('A zone that no pool suits', 'schedule_zone',
     {'name': 'example.net.', 'attributes': {'pops': 'moon'}}),
    ('A zone for Europe, by cast', 'schedule_zone_cast',
     {'name': 'example.eu.', 'attributes': {'pops': 'eu'}}),
    ('Three instances in the north, by call', 'select_destinations',
     {**_NORTH, 'num_instances': 3}),
    ('An instance that needs an FPGA and its trait', 'select_destinations',
     {'flavor': {**_FLAVOR, 'extra_specs': _FPGA}}),
    ('An instance in the south, by cast', 'select_destinations_cast',
     {'availability_zone': 'south', 'flavor': _FLAVOR}),
    ('An instance that fits nowhere, and why', 'select_destinations',
     {**_NORTH, 'flavor': {**_FLAVOR, 'memory_mb': 150_000}}),
)  # fmt: skip
# The cloud of --serve, and what is asked of it: weight and request.
_HOSTS, _DECISIONS = 1000, 2000
_ZONES = 'first', 'second', 'third'
_SIZES = (32, 131072), (64, 262144), (96, 524288)
_LARGE = {'name': 'large', 'vcpus': 16, 'memory_mb': 65536, 'root_gb': 80}
_GPU = {'trait:CUSTOM_GPU': 'required'}
_MIX: tuple[tuple[int, dict[str, Any]], ...] = (
    (30, {'flavor': _FLAVOR}),
    (20, {'flavor': _FLAVOR, 'availability_zone': 'second'}),
    (10, {'flavor': _LARGE, 'availability_zone': 'third'}),
    (5, {'flavor': _LARGE, 'num_instances': 4}),
    (4, {'flavor': {**_FLAVOR, 'name': 'gpu', 'extra_specs': _GPU}}),
    (3, {'flavor': {**_LARGE, 'name': 'huge', 'memory_mb': 2**20}}),
    (2, {'flavor': _FLAVOR, 'availability_zone': 'fourth'}),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; return 0 if nothing failed."""
    parser = argparse.ArgumentParser(
        prog='scheduler-quickstart', description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        '--inventory',
        help='inventory document (default: the sample)',
    )
    parser.add_argument(
        '--folder', help='folder for all files (default: a new one in /tmp)'
    )
    parser.add_argument(
        '--serve', type=int, nargs='?', const=0, metavar='PORT',
        help='then fill a cloud, and serve pages on it until an interrupt, '
        'on this port or a free one',
    )  # fmt: skip
    args = parser.parse_args(argv)
    try:
        folder = pathlib.Path(
            args.folder or tempfile.mkdtemp(prefix='scheduler-')
        ).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        document = args.inventory or str(_shipped('inventory.yaml'))
        status = _run(folder, document)
        if not status and args.serve is not None:
            status = _serve(folder, args.serve)
        return status
    except (errors.SchedulerError, OSError) as error:
        print(program.error_line(error), file=sys.stderr)
        return 1


def _shipped(name: str) -> pathlib.Path:
    """Return the path of a file of ``etc/scheduler_service``."""
    here = _SOURCE / 'etc' / 'scheduler_service' / name
    if here.exists():
        return here
    # The installation's record has their place: below the prefix, the user's
    # folder, or a folder that was given to pip.
    for file in metadata.files('scheduler-service') or ():
        if file.as_posix().endswith(f'{_FOLDER}/{name}'):
            return pathlib.Path(str(file.locate())).resolve()
    raise errors.ConfigurationError(
        f'{_FOLDER}/{name} is not installed: install the package again'
    )


def _run(folder: pathlib.Path, document: str) -> int:
    from scheduler_service.cmd import manage

    started = time.monotonic()
    config = folder / 'scheduler_service.conf'
    config.write_text(_CONFIG.format(folder=folder, pools=_POOLS))
    _heading('Migrate the database and import the inventory')
    for command in (['db', 'sync'], ['inventory', 'import', document]):
        status = manage.main(['--config-file', str(config), *command])
        if status:
            return status
    _demonstrate(config)
    spent = time.monotonic() - started
    _heading(f'Done in {spent:.1f} s. Everything is in {folder}')
    manage_path = pathlib.Path(sys.executable).parent / 'scheduler-manage'
    output.say(f'{manage_path} --config-file {config} decision list')
    output.say(
        f'{manage_path} --config-file {config} select --local --explain'
        f' --request {_shipped("request.yaml")}'
    )
    return 0


def _heading(text: str) -> None:
    output.say(f'== {text}', 'bold')


def _demonstrate(config: pathlib.Path) -> None:
    """Run a daemon in this process, and send it calls and casts."""
    daemon = _daemon(config)
    from scheduler_service.rpc import transport
    from scheduler_service.rpc.client import SchedulerClient

    import oslo_messaging  # isort: skip

    conf = daemon.conf
    client = SchedulerClient(
        conf, topic=conf.scheduler.topic, exchange=conf.scheduler.exchange
    )
    _heading('Start the daemon on the in-process bus')
    conductor = _Conductor()
    # Gets the replies to casts.
    listener = oslo_messaging.get_rpc_server(
        transport.for_client(conf),
        oslo_messaging.Target(topic='conductor', server='quickstart'),
        [conductor],
    )
    try:
        daemon.start()
        listener.start()
        output.table([client.ping(_OPERATOR)], ['server', 'hosts', 'pools'])
        for title, method, request in _REQUESTS:
            _heading(title)
            _send(client, conductor, method, request)
    finally:
        listener.stop()
        listener.wait()
        daemon.stop()


def _daemon(config: pathlib.Path, **http: Any) -> Daemon:
    """Return a daemon that is not started yet.

    :param http: options of its group
    """
    from scheduler_service import conf as options
    from scheduler_service import rpc  # noqa: F401 - before oslo.messaging
    from scheduler_service.cmd import adapters
    from scheduler_service.cmd.daemon import Daemon
    from scheduler_service.rpc import transport

    conf = adapters.new_config()
    transport.prepare(conf)
    options.parse(conf, [f'--config-file={config}'])
    for name, value in http.items():
        conf.set_override(name, value, 'http')
    return Daemon(conf)


def _serve(folder: pathlib.Path, port: int) -> int:
    """Fill a cloud, and serve pages on it until an interrupt."""
    from scheduler_service.cmd import manage

    _heading(f'Fill {_HOSTS:,} hosts, and decide {_DECISIONS:,} requests')
    document = folder / 'cloud.json'
    document.write_text(json.dumps(_cloud()))
    config = folder / 'scheduler_service.conf'
    words = ['--config-file', str(config), 'inventory', 'import']
    if status := manage.main([*words, str(document)]):
        return status
    daemon = _daemon(config, bind_port=port)
    try:
        daemon.start()
        server = daemon.http.server
        assert server is not None
        _decide(daemon.scheduler)
        host, port = server.bind_addr
        _heading(f'Open http://{host}:{port}/ - Ctrl-C ends this')
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    finally:
        daemon.stop()
    return 0


def _cloud() -> dict[str, Any]:
    """Return an inventory: hosts of three sizes, in three zones.

    The older the hosts are, the fuller they are, also of what is not ours.
    """
    rng = random.Random(1)  # noqa: S311 - the same cloud each time
    names = [f'node-{number:04}' for number in range(_HOSTS)]
    hosts = []
    for number, name in enumerate(names):
        vcpus, memory_mb = _SIZES[number // 7 % len(_SIZES)]
        share = rng.betavariate(5 - 4 * number / _HOSTS, 2)
        host = {'host': name, 'vcpus': vcpus, 'memory_mb': memory_mb,
                'local_gb': 2000, 'local_gb_used': int(1800 * share),
                'vcpus_used': int(4 * vcpus * share),
                'memory_mb_used': int(1.4 * memory_mb * share)}  # fmt: skip
        if not number % 83:
            host |= {'status': 'disabled', 'disabled_reason': 'new disks'}
        elif number % 97 == 50:
            host['state'] = 'down'
        hosts.append(host)
    zones = [
        {'id': 9000 + at, 'name': f'racks-{zone}',
         'hosts': names[at::len(_ZONES)],
         'metadata': {'availability_zone': zone}}
        for at, zone in enumerate(_ZONES)
    ]  # fmt: skip
    return {'hosts': hosts, 'aggregates': zones}


def _decide(scheduler: Scheduler) -> None:
    """Decide requests, some of which are refused."""
    from scheduler_service.model import documents

    waiting: collections.deque[Any] = collections.deque()
    for asked in _requests():
        request = documents.request(asked)
        waiting.append(scheduler.select_destinations(request))
        # As many at a time as a busy daemon has.
        while len(waiting) > 100:
            with contextlib.suppress(errors.SchedulerError):
                waiting.popleft().result()
    for future in waiting:
        future.exception()


def _requests() -> Iterator[dict[str, Any]]:
    rng = random.Random(1)  # noqa: S311 - the same cloud each time
    weights, requests = zip(*_MIX, strict=True)
    for asked in rng.choices(requests, weights, k=_DECISIONS):
        yield {**asked, 'project_id': f'project-{rng.randrange(9)}'}


def _send(
    client: Any, conductor: _Conductor, method: str, request: dict[str, Any]
) -> None:
    """Send a request, and print the reply."""
    name = method.removesuffix('_cast')
    send = getattr(client, method)
    try:
        if name == method:
            result = send(_CONTEXT, request, explain=True)
        else:
            send(_CONTEXT, request, reply_to={'topic': 'conductor'})
            result = conductor.replies.get(timeout=30)['result']
    except errors.SchedulerError as error:
        output.failure(error)
        return
    _PRINTERS[name](result)
    output.explanation(result.get('explanation'))


class _Conductor:
    """Receives the replies to casts, as a conductor does."""

    def __init__(self) -> None:
        self.replies: queue.Queue[dict[str, Any]] = queue.Queue()

    def scheduler_answer(self, ctxt: Any, **reply: Any) -> None:
        self.replies.put(reply)


if __name__ == '__main__':
    sys.exit(main())
