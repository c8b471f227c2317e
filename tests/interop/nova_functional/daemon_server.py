"""Runs daemons, one at a time, for one worker of nova's tests.

Arguments: the URL of the bus, and a folder for the store. Each line of the
input is a command in JSON, each line of the output the answer:

start
    a daemon with ``options``, the databases ``api`` and ``cells``, the service
    ``placement``, on ``topic``; with ``keep`` on the store of the last one
read
    all databases and all providers as a whole
explain
    the last decisions, and the hosts as they are stored
stop
    the daemon
"""

import json
import logging
import os
import pathlib
import shutil
import sys
import threading
import traceback
import types

import sqlalchemy as sa

from scheduler_service.cmd.daemon import Daemon
from scheduler_service.store import schema
from tests.support import host_name_weigher
from tests.support.databases import migrated_database
from tests.support.placement_service import daemon_options

_LIMIT_S = 20.0
_STOP_S = 3.0


class Running:
    """A daemon that runs.

    :param store_url: of the database that has its tables
    :param bus: URL of the compute service's bus
    :param command: ``start``
    :ivar unknown: options that the daemon does not take
    """

    def __init__(self, store_url, bus, command):
        self.store_url = store_url
        self.unknown = []
        host_name_weigher.WEIGHTS.clear()
        host_name_weigher.WEIGHTS.update(command['weights'])
        placement, topic = command['placement'], command['topic']
        conf = daemon_options(
            types.SimpleNamespace(url=placement or 'http://127.0.0.1:9'),
            database__connection=store_url,
            scheduler__topic=f'own-{topic}',
            compute__enabled=True,
            compute__transport_url=bus,
            compute__topic=topic,
            compute__api_database=command['api'],
            compute__use_placement=bool(placement),
        )
        conf.set_override('driver', ['noop'], 'oslo_messaging_notifications')
        for group, values in command['options'].items():
            for name, value in values.items():
                self._set(conf, group, name, value)
        self._daemon = Daemon(conf, f'inproc://{topic}/')
        (adapter,) = self._daemon.adapters
        self._mirror, self._providers = adapter.mirror, adapter.providers
        cells = command['cells']
        # nova's tests name the databases of their cells by uuids.
        adapter.mirror.cell_url = lambda url, base: cells.get(url, url)
        self._daemon.start()

    def _set(self, conf, group, name, value):
        try:
            conf.set_override(
                name, value, None if group == 'DEFAULT' else group
            )
        except Exception as fault:
            self.unknown.append(f'{group}.{name}={value!r}: {fault!r}')

    def read(self):
        """Read all that is there now; return whether it was read in time."""
        in_time = _wait_for(self._mirror.read_all)
        if self._providers is not None:
            self._providers.read_new()
            in_time &= _wait_for(self._providers.read_all)
        return in_time

    def explain(self):
        """Return the last decisions, and the hosts with their capacity."""
        decisions = schema.decisions
        last = sa.select(decisions).order_by(decisions.c.id.desc()).limit(6)
        said = {}
        with self._daemon.store.reading() as conn:
            for name, query in (
                ('decisions', last),
                ('hosts', sa.select(schema.hosts)),
                ('inventories', sa.select(schema.inventories)),
            ):
                said[name] = [
                    {key: str(value)[:20000] for key, value in row.items()}
                    for row in conn.execute(query).mappings()
                ]
        return said

    def stop(self):
        """Stop it; nothing is in work."""
        self._daemon.conf.set_override(
            'graceful_shutdown_timeout', _STOP_S, 'scheduler'
        )
        self._daemon.stop()


def _wait_for(read):
    """Return whether a read was over in time."""
    done = threading.Event()
    read(done.set)
    return done.wait(_LIMIT_S)


class Server:
    """Does what is commanded."""

    def __init__(self, bus, folder):
        self._bus = bus
        self._folder = folder
        self._running = None

    def do(self, command):
        """Return the answer to a command."""
        return getattr(self, command.pop('do'))(command)

    def start(self, command):
        url = self._running.store_url if command['keep'] else None
        self.stop()
        if url is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
            url = migrated_database(f'sqlite:///{self._folder}/')
        self._running = Running(url, self._bus, command)
        return {'unknown': self._running.unknown}

    def read(self, command):
        return {'in_time': self._running.read()}

    def explain(self, command):
        return self._running.explain()

    def stop(self, command=None):
        running, self._running = self._running, None
        if running is not None:
            running.stop()
        return {}


def main(bus, folder):
    """Answer commands until the input ends."""
    answers = os.fdopen(os.dup(1), 'w', buffering=1)
    # Whatever else is printed goes to the log.
    os.dup2(2, 1)
    logging.basicConfig(
        level=logging.INFO,
        format='%(asctime)s %(levelname)s %(name)s %(message)s',
    )
    for name in ('sqlalchemy', 'amqp', 'kombu', 'oslo', 'oslo_messaging'):
        logging.getLogger(name).setLevel(logging.WARNING)
    server = Server(bus, pathlib.Path(folder))
    for line in sys.stdin:
        try:
            answer = server.do(json.loads(line))
        except Exception as fault:
            traceback.print_exc()
            answer = {'error': f'{type(fault).__name__}: {fault}'}
        answers.write(json.dumps(answer) + '\n')
    server.stop()
    answers.flush()
    os._exit(0)


if __name__ == '__main__':
    main(*sys.argv[1:])
