"""What one request executes of the package, thread by thread.

``python -m tools.request_path`` starts a private RabbitMQ and PostgreSQL and a
daemon, sends one request as a caller does, and prints each function that the
daemon executed for it, in order of first execution. What an idle daemon
executes on the same thread is left out. Then come the classes of the package
of which instances were made, and totals. An instance is seen where a function
of the package has it as an argument, a variable or a result, or in such an
object; one that goes from library to library is not.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import itertools
import json
import pathlib
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, Listener
from typing import Any, Protocol

from benchmarks.common import write_config
from benchmarks.kube_caller import KubeCaller
from scheduler_service import rpc  # noqa: F401 - chooses the bus's backend
from scheduler_service.cmd.daemon import Daemon
from scheduler_service.rpc.client import SchedulerClient
from tests.support import kube, processes, servers
from tests.support.databases import ready_database
from tests.support.documents import CONTEXT, INVENTORY, SMALL
from tests.support.paths import ROOT
from tests.support.recording import (
    Function,
    Recorder,
    Recording,
    is_plugin_or_rpc,
)
from tests.support.services import connected, new_conf

VERBS = ('select', 'zone', 'extender')
_TOPIC = 'request_path'
_WARM_UP = 20
# Longer than the pause of any thread that works from time to time, but for
# what is done once a minute.
_IDLE_S = 6.0
# After the reply a message is acknowledged, and the decision is stored.
_SETTLE_S = 0.6


class _Switch(Protocol):
    """A recorder, here or in another process."""

    def start(self, idle: Recording | None = None) -> None: ...

    def stop(self) -> Recording: ...


class _RemoteRecorder:
    """The recorder of ``tools.recorded_daemon``."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def start(self, idle: Recording | None = None) -> None:
        self._conn.send(('start', idle))
        self._conn.recv()

    def stop(self) -> Recording:
        self._conn.send(('stop',))
        recording: Recording = self._conn.recv()
        return recording


@contextlib.contextmanager
def _embedded(port: int) -> Iterator[tuple[_Switch, SchedulerClient]]:
    """Run a daemon in this process, on the in-process bus and SQLite."""
    recorder = Recorder()
    url = f'inproc://{uuid.uuid4().hex}/'
    with tempfile.TemporaryDirectory() as folder:
        conf = new_conf(
            database__connection=ready_database(f'sqlite:///{folder}/'),
            scheduler__topic=_TOPIC,
            http__bind_port=port,
        )
        daemon = Daemon(conf, url)
        recorder.install()
        try:
            daemon.start()
            with connected(url, _TOPIC) as client:
                yield recorder, client
        finally:
            recorder.uninstall()
            daemon.stop()


@contextlib.contextmanager
def _on_servers(port: int) -> Iterator[tuple[_Switch, SchedulerClient]]:
    """Run a daemon as a process, on RabbitMQ and PostgreSQL."""
    with (
        servers.rabbitmq() as (_, bus),
        servers.postgresql() as (_, base),
        tempfile.TemporaryDirectory() as folder,
        Listener(f'{folder}/recorder', 'AF_UNIX') as listener,
    ):
        config = write_config(
            pathlib.Path(folder), ready_database(base), bus, topic=_TOPIC
        )
        with config.open('a') as more:
            more.write(f'[http]\nbind_port = {port}\n')
        process = processes.launch(
            config,
            module='tools.recorded_daemon',
            cwd=str(ROOT),
            RECORDER=str(listener.address),
        )
        try:
            process.wait_for('Ready:')
            with listener.accept() as conn, connected(bus, _TOPIC) as client:
                yield _RemoteRecorder(conn), client
        finally:
            process.remove()


@contextlib.contextmanager
def _caller(
    verb: str, client: SchedulerClient, port: int
) -> Iterator[Callable[[], Any]]:
    """Give a function that sends the next request of a kind."""
    numbers = itertools.count(1)
    if verb == 'select':
        arguments = {'flavor': SMALL}
        yield lambda: client.select_destinations(CONTEXT, arguments)
        return
    if verb == 'zone':
        yield lambda: client.schedule_zone(
            CONTEXT, {'name': f'zone-{next(numbers)}.example.'}
        )
        return
    names = [host['host'] for host in INVENTORY['hosts']]

    def filter_nodes() -> None:
        pod = kube.pod(f'pod-{next(numbers)}')
        body = json.dumps({'Pod': pod, 'Nodes': None, 'NodeNames': names})
        reply = json.loads(caller.call('filter', body.encode()))
        if reply['NodeNames'] != names:
            raise RuntimeError(f'reply: {reply}')

    with contextlib.closing(KubeCaller(port, '/extender')) as caller:
        yield filter_nodes


def record(verb: str, embedded: bool) -> tuple[Recording, Recording]:
    """Return what one request executes, and what an idle daemon does.

    :param embedded: run the daemon in this process, without servers
    """
    port = servers.free_port()
    run = _embedded if embedded else _on_servers
    with (
        run(port) as (recorder, client),
        _caller(verb, client, port) as call,
    ):
        for _ in range(_WARM_UP):
            call()
        time.sleep(_SETTLE_S)
        recorder.start()
        time.sleep(_IDLE_S)
        idle = recorder.stop()
        recorder.start(idle)
        call()
        time.sleep(_SETTLE_S)
        return recorder.stop(), idle


def function_lines(recording: Recording) -> Iterator[str]:
    """Yield what each thread executed, in order of first execution."""
    for thread in recording.threads():
        yield f'{thread}:'
        for function in recording.functions(thread):
            yield f'    {function.path:40} {function.name}'
        yield ''


def row_lines(recording: Recording) -> Iterator[str]:
    """Yield functions as rows of a call list of the architecture page.

    The last column is the first line of the docstring. What stands in another
    function has no row: the page cannot name it.
    """
    for thread in recording.threads():
        for function in recording.functions(thread):
            if '<' not in function.name:
                purpose = _purpose(function)
                yield f'   ``{function.label}`` | {thread} | {purpose}'


def _purpose(function: Function) -> str:
    module, _, name = function.label.partition(':')
    named: Any = functools.reduce(
        lambda recording, part: getattr(recording, part, None),
        name.split('.'),
        importlib.import_module(f'scheduler_service.{module}'),
    )
    return (named.__doc__ or '').strip().partition('\n')[0]


def class_lines(recording: Recording) -> Iterator[str]:
    """Yield the classes of instances that were made, and how many."""
    yield 'Instances that were made:'
    for (module, name), count in sorted(recording.made.items()):
        yield f'    {module + ":" + name:60} {count:4}'
    yield ''


def total_lines(recording: Recording) -> Iterator[str]:
    """Yield how many functions and files there are, and how many classes."""
    threads = {
        thread: recording.functions(thread) for thread in recording.threads()
    }
    every = dict.fromkeys(itertools.chain.from_iterable(threads.values()))
    line = '{:24}{:>10}{:>6}{:>18}{:>6}'.format
    yield line('', 'all', '', 'no plug-ins, bus', '').rstrip()
    yield line('', 'functions', 'files', 'functions', 'files')
    for name, functions in (*threads.items(), ('all threads', list(every))):
        own = [
            function
            for function in functions
            if not is_plugin_or_rpc(function.module)
        ]
        counts = [
            (len(some), len({function.path for function in some}))
            for some in (functions, own)
        ]
        yield line(name, *counts[0], *counts[1])
    own_classes = [
        made for made in recording.made if not is_plugin_or_rpc(made[0])
    ]
    yield line(
        'classes', len(recording.made), '', len(own_classes), ''
    ).rstrip()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--verb', choices=VERBS, default='select',
        help='select_destinations (default), schedule_zone, or the filter '
        'call of a kube-scheduler',
    )  # fmt: skip
    parser.add_argument(
        '--embedded', action='store_true',
        help='in-process bus and SQLite, without servers',
    )  # fmt: skip
    parser.add_argument(
        '--rows', action='store_true',
        help='print functions as rows of a call list of the architecture '
        'page, with the first lines of their docstrings',
    )  # fmt: skip
    args = parser.parse_args(argv)
    recording, idle = record(args.verb, args.embedded)
    recording = recording.without(idle)
    parts = [row_lines] if args.rows else [
        function_lines, class_lines, total_lines,
    ]  # fmt: skip
    for part in parts:
        for line in part(recording):
            print(line)


if __name__ == '__main__':
    main()
