"""Has a daemon answer in place of nova-scheduler in nova's own tests.

Runs where nova is installed, and is imported before the tests. In nova it
replaces the client of ``nova.scheduler.rpcapi.SchedulerAPI``: calls and casts
go to a daemon over RabbitMQ once a test has started nova-scheduler, which is
started as ever and gets no message. Else it only looks on where databases and
placement are made, so that the daemon can read and call them; placement is
served over HTTP too.
"""

import contextlib
import functools
import importlib
import io
import json
import pathlib
import socketserver
import subprocess
import sys
import threading
import time
import types
import uuid
from unittest import mock
from wsgiref import simple_server

import oslo_messaging as messaging
from nova import rpc
from nova.objects import base as objects_base
from nova.scheduler import manager as scheduler_manager
from nova.scheduler import rpcapi
from nova.tests.functional import fixtures as functional_fixtures
from oslo_config import cfg
from oslo_utils import importutils
from placement.tests.functional.fixtures import placement as placement_fixtures

# The package has an attribute of this name that is another module.
nova_fixtures = importlib.import_module('nova.tests.fixtures.nova')
ROOT = pathlib.Path(__file__).resolve().parents[3]
# A call that takes longer fails, in seconds.
_LIMIT_S = 60
_FRESH_POLL_S = 0.05
# Options of nova's that have nothing to do with decisions.
_NOT_OURS = {
    'filter_scheduler': (
        'available_filters',
        'track_instance_changes',
        'pci_in_placement',
    ),
    'scheduler': (
        'workers',
        'discover_hosts_in_cells_interval',
        'max_placement_results',
    ),
}
# The hosts that weighers of tests are asked about.
_HOSTS = [
    'compute', 'fake-mini', 'dest', 'source', 'src', 'dst', 'host',
    *(
        f'{stem}{dash}{number}'
        for stem in (
            'host', 'compute', 'test_compute', 'test', 'fake-mini',
            'fake_host', 'src', 'dst', 'cell',
        )
        for dash in ('', '-', '_')
        for number in range(6)
    ),
]  # fmt: skip
# Tests replace this one.
_popen = subprocess.Popen


class _PlacementServer(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True
    request_queue_size = 64


class _Quiet(simple_server.WSGIRequestHandler):
    def log_message(self, *args):
        pass

    def address_string(self):
        return self.client_address[0]


class _Called:
    """Stands for the calls of a mock of a filter of nova's.

    The daemon calls no filter of nova's: such a mock was called if a test
    asks whether it was, and was not if it asks whether it was not.
    """

    def __bool__(self):
        return sys._getframe(1).f_code.co_name != 'assertFalse'


class InPlace:
    """The daemon of the test that runs.

    :param fresh: whether each call waits until all was read as a whole; else
        the daemon has the intervals that it is shipped with
    :param bus: URL of a RabbitMQ
    :param folder: for the daemon's store and its log
    :param python: the interpreter of the daemon
    :ivar log: what happened in the test, one list for each event
    """

    def __init__(self, fresh, bus, folder, python):
        self.log = []
        self.app = None
        self._fresh = fresh
        self._bus = bus
        self._folder = pathlib.Path(folder)
        self._python = python
        self._databases = {}
        self._manager = None
        self._topic = None
        self._at_start = [], []
        # What the running daemon was started with; None: none runs.
        self._running = None
        self._lock = threading.RLock()
        self._server = None
        self._process = None
        self._transport = None

    @property
    def is_active(self):
        """Whether nova-scheduler was started, and on a database."""
        return self._manager is not None and 'api' in self._databases

    def add_database(self, name, path):
        """Note a database that a test made."""
        if name == 'api':
            self.end()
            self._databases = {}
        self._databases[name] = path

    def scheduler_started(self, manager):
        """Start the daemon, or start it again after changes of options."""
        with self._lock:
            group = cfg.CONF.filter_scheduler
            self._manager = manager
            self._at_start = [*group.enabled_filters], [*group.weight_classes]
            if self.is_active:
                self._start()

    def call(self, serializer, how, ctxt, method, args):
        """Call the daemon; return its answer as nova's objects."""
        note = {'spec': _as_json(args.get('spec_obj'))}
        self.log.append(['call', method, note])
        how = {**how, 'timeout': _LIMIT_S, 'call_monitor_timeout': None}
        with self._lock:
            self._start()
            if self._fresh:
                note.update(self._tell('read'))
        client = self._client(serializer).prepare(**how)
        began = time.monotonic()
        try:
            found = client.call(ctxt, method, **args)
            note['answer'] = _as_json(found)
            return found
        except Exception as fault:
            note['error'] = f'{type(fault).__name__}: {fault}'
            raise
        finally:
            note['s'] = round(time.monotonic() - began, 3)
            self._answer_mocks()

    def cast(self, serializer, how, ctxt, method, args):
        """Cast to the daemon, if one runs."""
        if self._running is not None:
            self.log.append(['cast', method, _as_json(args)])
            client = self._client(serializer).prepare(**how)
            client.cast(ctxt, method, **args)

    def explain(self):
        """Return what the daemon decided, and what hosts it knows."""
        with self._lock:
            return None if self._running is None else self._tell('explain')

    def end(self):
        """End the daemon of a test."""
        with self._lock:
            if self._running is not None:
                self._tell('stop')
            self._running = self._manager = self._topic = self.app = None

    def close(self):
        """End the process in which daemons run."""
        if self._process is not None:
            self._process.stdin.close()
            self._process.wait(60)

    def _start(self):
        options, weights = self._options()
        wanted = {
            'options': options,
            'weights': weights,
            'api': f'sqlite:///{self._databases["api"]}',
            'cells': {
                name: f'sqlite:///{path}'
                for name, path in self._databases.items()
            },
            'placement': self._serve() if self.app else None,
        }
        if wanted == self._running:
            return
        keep = self._running is not None
        if not keep:
            self._topic = f't{uuid.uuid4().hex[:12]}'
        self._running = None
        answer = self._tell('start', topic=self._topic, keep=keep, **wanted)
        self.log.append(['start', answer])
        self._running = wanted

    def _tell(self, what, **more):
        if self._process is None:
            module = 'tests.interop.nova_functional.daemon_server'
            self._folder.mkdir(parents=True, exist_ok=True)
            self._process = _popen(
                [self._python, '-W', 'ignore', '-m', module, self._bus,
                 str(self._folder / 'store')],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=(self._folder / 'daemon.log').open('a'),
                text=True, bufsize=1, cwd=ROOT,
            )  # fmt: skip
        self._process.stdin.write(json.dumps({'do': what, **more}) + '\n')
        answer = json.loads(self._process.stdout.readline() or '{"error": ""}')
        if 'error' in answer:
            raise RuntimeError(f'No daemon: {answer["error"]}')
        return answer

    def _options(self):
        """Return the options that a test set, and the weights of hosts."""
        conf = cfg.CONF
        groups = {
            group: {
                name: conf[group][name]
                for name in conf[group]
                if name not in _NOT_OURS.get(group, ())
            }
            for group in ('filter_scheduler', 'scheduler', 'metrics')
        }
        filters, weighers = self._at_start
        ours, weights = groups['filter_scheduler'], {}
        ours['enabled_filters'] = filters
        ours['weight_classes'] = []
        for path in weighers:
            name = path.rpartition('.')[2]
            if path.startswith('nova.tests.'):
                weights = _weights(importutils.import_class(path)())
                name = 'tests.support.host_name_weigher.HostName'
            elif name == 'all_weighers':
                name = path
            ours['weight_classes'].append(name)
        groups['DEFAULT'] = {
            'default_availability_zone': conf.default_availability_zone
        }
        groups['compute'] = {'service_down_time': conf.service_down_time}
        if self._fresh:
            groups['compute']['poll_interval'] = _FRESH_POLL_S
            groups['scheduler']['snapshot_max_age'] = 0.0
        return groups, weights

    def _serve(self):
        """Serve the placement of the test on loopback; return its URL."""
        if self._server is None:
            self._server = simple_server.make_server(
                '127.0.0.1', 0, self._placement, _PlacementServer, _Quiet
            )
            threading.Thread(
                target=self._server.serve_forever, daemon=True
            ).start()
        return f'http://127.0.0.1:{self._server.server_port}'

    def _placement(self, env, start):
        status = []

        def begin(line, headers, *more):
            status.append(line)
            return start(line, headers, *more)

        sent = env['wsgi.input'].read(int(env.get('CONTENT_LENGTH') or 0))
        env['wsgi.input'] = io.BytesIO(sent)
        body = [*self.app(env, begin)]
        path = f'{env["PATH_INFO"]}?{env.get("QUERY_STRING")}'
        entry = ['placement', env['REQUEST_METHOD'], path, *status]
        if sent or status[0] >= '4' or 'candidates' in path:
            entry += [sent.decode(), b''.join(body).decode()]
        self.log.append(entry)
        return body

    def _client(self, serializer):
        if self._transport is None:
            conf = cfg.ConfigOpts()
            conf([], default_config_files=[], default_config_dirs=[])
            for group in 'oslo_messaging_metrics', 'oslo_messaging_tracing':
                with contextlib.suppress(KeyError):
                    for info in cfg.CONF._groups[group]._opts.values():
                        conf.register_opt(info['opt'], group=group)
            self._transport = messaging.get_rpc_transport(
                conf,
                url=self._bus,
                allowed_remote_exmods=rpc.get_allowed_exmods(),
            )
        target = messaging.Target(
            exchange='nova', topic=self._topic, version='4.0'
        )
        return messaging.get_rpc_client(
            self._transport,
            target,
            serializer=rpc.RequestContextSerializer(serializer),
        )

    def _answer_mocks(self):
        manager = getattr(self._manager, 'host_manager', None)
        for kind in getattr(manager, 'filter_cls_map', {}).values():
            passes = getattr(kind, 'host_passes', None)
            if isinstance(passes, mock.NonCallableMock) and not passes.called:
                passes.called = _Called()
                self.log.append(['mocked', kind.__name__])


class _Client:
    """Stands in for nova's RPC client of the topic ``scheduler``."""

    def __init__(self, real, serializer, in_place):
        self._real = real
        self._serializer = serializer
        self._in_place = in_place

    def __getattr__(self, name):
        return getattr(self._real, name)

    def prepare(self, **how):
        if not self._in_place.is_active:
            return self._real.prepare(**how)
        return types.SimpleNamespace(
            call=functools.partial(self._send, self._in_place.call, how),
            cast=functools.partial(self._send, self._in_place.cast, how),
        )

    def _send(self, send, how, ctxt, method, **args):
        return send(self._serializer, how, ctxt, method, args)


def _weights(weigher):
    """Return what a weigher of a test says of each host."""
    weights = {
        host: weigher._weigh_object(types.SimpleNamespace(host=host), {})
        for host in _HOSTS
    }
    return {**weights, **(getattr(weigher, 'weights', None) or {})}


def _as_json(said):
    primitive = getattr(said, 'obj_to_primitive', lambda: said)()
    return json.loads(json.dumps(primitive, default=str))


def _after(owner, name, then):
    """Have a function called with the result and arguments of another."""
    real = getattr(owner, name)

    @functools.wraps(real)
    def wrapped(*args, **kwargs):
        result = real(*args, **kwargs)
        return then(result, *args)

    setattr(owner, name, wrapped)
    return wrapped


def install(in_place):
    """Look on where nova's tests make what the daemon needs.

    :raises AttributeError: this release of nova has other names
    """

    def database_made(made, name):
        in_place.add_database(name, made[1])
        return made

    functional_fixtures._use_file_backed_sqlite_with_wal = _after(
        nova_fixtures, '_use_file_backed_sqlite_with_wal', database_made
    )

    def placement_made(app, *_args):
        alone = threading.RLock()

        def serve(env, start):
            # Where its database is in memory there is one connection.
            with alone:
                return [*app(env, start)]

        in_place.app = serve
        return serve

    _after(placement_fixtures.deploy, 'loadapp', placement_made)

    def client_made(_, api):
        serializer = objects_base.NovaObjectSerializer()
        api.client = _Client(api.client, serializer, in_place)

    _after(rpcapi.SchedulerAPI, '__init__', client_made)
    _after(
        scheduler_manager.SchedulerManager,
        '__init__',
        lambda _, manager, *args: in_place.scheduler_started(manager),
    )

    def service_started(_, service):
        if service.kwargs['binary'] == 'nova-scheduler':
            service.addCleanup(in_place.end)

    _after(nova_fixtures.ServiceFixture, 'setUp', service_started)
