"""``scheduler-quickstart``: try the whole service in one process.

The program runs the daemon on an SQLite file and the in-process bus, and sends
it calls and casts. The files stay in a folder for a closer look.
"""

from __future__ import annotations

import argparse
import pathlib
import queue
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from scheduler_service import errors
from scheduler_service.cmd import output, program

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
    args = parser.parse_args(argv)
    try:
        folder = pathlib.Path(
            args.folder or tempfile.mkdtemp(prefix='scheduler-')
        ).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        return _run(folder, args.inventory or str(_shipped('inventory.yaml')))
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
    from scheduler_service import conf as options
    from scheduler_service import rpc  # noqa: F401 - before oslo.messaging
    from scheduler_service.cmd import adapters
    from scheduler_service.cmd.daemon import Daemon
    from scheduler_service.rpc import transport
    from scheduler_service.rpc.client import SchedulerClient

    import oslo_messaging  # isort: skip

    conf = adapters.new_config()
    transport.prepare(conf)
    options.parse(conf, [f'--config-file={config}'])
    daemon = Daemon(conf)
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
