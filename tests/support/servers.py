"""Private servers on free loopback ports, started for tests and benchmarks.

Binaries come from the distribution. As root each server runs as its own
user, since PostgreSQL refuses to be root and RabbitMQ had better not be.
A server that is not *durable* skips what only matters when the machine
itself fails: it survives the end of its process, and is faster.
"""

from __future__ import annotations

import collections
import contextlib
import glob
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.support import failures
from tests.support.waiting import LIMIT_S

# The module of RabbitMQ that keeps users; the last text is who changes one.
USERS = 'rabbit_auth_backend_internal'
# What has RabbitMQ answer when it has started.
STARTED = f'rabbit:await_startup(node(), false, {LIMIT_S * 1000:.0f})'
# Descriptors of sockets. The oldest ones belong to tests that are over, or to
# servers that run.
_kept_ports: collections.deque[int] = collections.deque()
_MOST_KEPT = 200


class ServerMissing(Exception):
    """The server is not installed here."""


def free_port(beside: int = 0) -> int:
    """Return a loopback port that is kept for whoever listens on it next.

    A socket stays bound to it, without listening. The system then gives the
    port neither to an outgoing connection nor to a server that asks for any.
    A server that names it may listen, also again after it has ended: like all
    servers it lets its address be used anew. Until then a connection is
    refused.

    :param beside: how far above it another port is, which is kept as well
    """
    while True:
        kept = _bound(0)
        port = int(kept.getsockname()[1])
        try:
            if beside:
                _keep(_bound(port + beside))
        except (OSError, OverflowError):
            kept.close()
            continue
        _keep(kept)
        return port


def _keep(made: socket.socket) -> None:
    _kept_ports.append(made.detach())
    while len(_kept_ports) > _MOST_KEPT:
        os.close(_kept_ports.popleft())


def _bound(port: int) -> socket.socket:
    """Return a socket that is bound to a port, or any, and does not listen."""
    made = socket.socket()
    try:
        made.bind(('127.0.0.1', port))
    except (OSError, OverflowError):
        made.close()
        raise
    # Only now: with it two processes could be given the same port.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


def binary(name: str, *places: str) -> str:
    """Return the path of a server's program."""
    found = shutil.which(name)
    for place in places:
        matches = sorted(glob.glob(place))
        found = found or (matches[-1] if matches else None)
    if not found:
        raise ServerMissing(f'{name} is not installed')
    return found


class Server:
    """A server process with a folder of its own.

    A pickled copy runs commands; it does not start or stop the process.
    """

    def __init__(
        self,
        user: str,
        stop_signal: signal.Signals = signal.SIGTERM,
        remove_signal: signal.Signals = signal.SIGTERM,
        beside: int = 0,
    ) -> None:
        """Make the folder.

        :param stop_signal: stops it, with its data as they should be
        :param remove_signal: stops it when its data are of no more use
        :param beside: of :func:`free_port`
        """
        self.stop_signal = stop_signal
        self.remove_signal = remove_signal
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix='sched-'))
        self.folder.chmod(0o755)
        self._kind = user
        self.user = user if os.getuid() == 0 else None
        if self.user:
            shutil.chown(self.folder, self.user)
        self.port = free_port(beside)
        self.process: subprocess.Popen[bytes] | None = None
        self.log = self.folder / 'server.log'
        self._shown = self._show()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, 'process': None, '_shown': None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shown = self._show()

    def _show(self) -> failures.Output:
        """Have reports of failures show what it has written."""
        return failures.Output(
            f'{self._kind} on port {self.port}',
            lambda: failures.tail(self.log, *self.folder.glob('log/*.log')),
        )

    def command(self, *args: str, **env: str) -> subprocess.CompletedProcess:
        """Run one command as the server's user, in its folder."""
        return subprocess.run(
            args, check=True, capture_output=True, **self._how(env)
        )

    def launch(self, args: Sequence[str], **env: str) -> None:
        """Start the server's process."""
        self._args, self._env = list(args), env
        with self.log.open('ab') as log:
            self.process = subprocess.Popen(
                args, stdout=log, stderr=log, **self._how(env)
            )

    def relaunch(self) -> None:
        """Start it again, on the same port and data."""
        self.launch(self._args, **self._env)

    def _how(self, env: dict[str, str]) -> dict[str, object]:
        how: dict[str, object] = {
            'cwd': self.folder,
            'env': {
                **os.environ,
                'HOME': str(self.folder),
                # MariaDB removes temporary tables of others from a folder
                # that it shares with them.
                'TMPDIR': str(self.folder),
                'LC_ALL': 'C.UTF-8',
                **env,
            },
        }
        if self.user:
            entry = pwd.getpwnam(self.user)
            how.update(user=entry.pw_uid, group=entry.pw_gid, extra_groups=[])
        return how

    def wait(self, ready: Callable[[], bool]) -> None:
        """Wait until *ready* says yes."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            assert self.process is not None
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                if ready():
                    return
            time.sleep(0.1)
        raise RuntimeError(
            f'server did not start: {self.log.read_text()[-2000:]}'
        )

    def kill(self, number: int | None = None) -> None:
        """Stop the process, by default in an orderly way; wait for its end."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(number or self.stop_signal)
            try:
                self.process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def remove(self) -> None:
        """Stop it and remove its folder."""
        self.kill(self.remove_signal)
        self._shown.end()
        shutil.rmtree(self.folder, ignore_errors=True)


def answers(port: int) -> bool:
    """Whether somebody listens on a loopback port."""
    with socket.create_connection(('127.0.0.1', port), timeout=1):
        return True


@contextlib.contextmanager
def postgresql(durable: bool = True) -> Iterator[tuple[Server, str]]:
    """Run PostgreSQL; yield it and a URL without the database's name."""
    place = '/usr/lib/postgresql/*/bin/'
    postgres = binary('postgres', place + 'postgres')
    initdb = binary('initdb', place + 'initdb')
    server = Server('postgres', signal.SIGINT, signal.SIGQUIT)
    fast = [] if durable else [
        '-c', 'fsync=off', '-c', 'synchronous_commit=off',
        '-c', 'full_page_writes=off',
    ]  # fmt: skip
    try:
        data = str(server.folder / 'data')
        server.command(
            initdb, '-D', data, '-A', 'trust', '-U', 'test', '-E', 'UTF8',
            '--no-sync',
        )  # fmt: skip
        server.launch(
            [
                postgres, '-D', data, '-p', str(server.port),
                '-k', str(server.folder), '-c', 'listen_addresses=127.0.0.1',
                '-c', 'max_connections=200', *fast,
            ]
        )  # fmt: skip
        psql = binary('psql', place + 'psql')
        server.wait(lambda: _psql(server, psql, 'SELECT 1'))
        yield server, f'postgresql+psycopg://test@127.0.0.1:{server.port}/'
    finally:
        server.remove()


def _psql(server: Server, psql: str, statement: str) -> bool:
    port = str(server.port)
    server.command(
        psql, '-h', '127.0.0.1', '-p', port, '-U', 'test', '-d', 'postgres',
        '-c', statement,
    )  # fmt: skip
    return True


@contextlib.contextmanager
def mariadb(durable: bool = True) -> Iterator[tuple[Server, str]]:
    """Run MariaDB; yield it and a URL without the database's name."""
    daemon = binary('mariadbd', '/usr/sbin/mariadbd')
    install = binary('mariadb-install-db', '/usr/bin/mariadb-install-db')
    server = Server('mysql', signal.SIGTERM, signal.SIGKILL)
    fast = [] if durable else [
        '--innodb-flush-log-at-trx-commit=0', '--innodb-doublewrite=0',
        '--innodb-flush-method=nosync', '--skip-innodb-stats-auto-recalc',
    ]  # fmt: skip
    try:
        data = str(server.folder / 'data')
        server.command(
            install, '--no-defaults', f'--datadir={data}',
            '--auth-root-authentication-method=normal', '--skip-test-db',
        )  # fmt: skip
        init = server.folder / 'init.sql'
        init.write_text(
            "CREATE USER 'test'@'127.0.0.1' IDENTIFIED BY 'test';\n"
            "GRANT ALL ON *.* TO 'test'@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        server.launch(
            [
                daemon, '--no-defaults', f'--datadir={data}',
                f'--socket={server.folder}/sock', f'--port={server.port}',
                '--bind-address=127.0.0.1', '--skip-name-resolve',
                f'--init-file={init}', '--max-connections=200', *fast,
            ]
        )  # fmt: skip
        server.wait(lambda: answers(server.port))
        # A restart finds the user there already.
        server._args.remove(f'--init-file={init}')
        yield server, f'mysql+pymysql://test:test@127.0.0.1:{server.port}/'
    finally:
        server.remove()


@contextlib.contextmanager
def rabbitmq(beside: int = 0) -> Iterator[tuple[Server, str]]:
    """Run RabbitMQ; yield it and its transport URL.

    :param beside: of :func:`free_port`
    """
    server = Server('rabbitmq', beside=beside)
    try:
        launch_rabbitmq(server)
        yield server, f'rabbit://guest:guest@127.0.0.1:{server.port}/'
    finally:
        server.remove()


def launch_rabbitmq(server: Server, arguments: str = '') -> None:
    """Start RabbitMQ with a node name of its own, and wait for it.

    :param arguments: more of them for the Erlang runtime
    """
    program = binary('rabbitmq-server', '/usr/sbin/rabbitmq-server')
    env = {
        'HOSTNAME': 'localhost',
        'RABBITMQ_NODENAME': f'test{server.port}@localhost',
        'RABBITMQ_NODE_IP_ADDRESS': '127.0.0.1',
        'RABBITMQ_NODE_PORT': str(server.port),
        'RABBITMQ_DIST_PORT': str(free_port()),
        'RABBITMQ_MNESIA_BASE': str(server.folder / 'mnesia'),
        'RABBITMQ_LOG_BASE': str(server.folder / 'log'),
        'RABBITMQ_ENABLED_PLUGINS_FILE': str(server.folder / 'plugins'),
        'RABBITMQ_CONFIG_FILE': str(server.folder / 'none'),
        # Do not spin while idle: on few cores that is taken from others.
        'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS': (
            f'+sbwt none +sbwtdcpu none +sbwtdio none {arguments}'
        ),
    }
    server.launch([real_program(program)], **env)
    server.wait(lambda: answers(server.port))
    evaluate(server, STARTED)


def rabbitmqctl(server: Server, *args: str) -> str:
    """Run the control program on a private RabbitMQ; return its output."""
    control = real_program(binary('rabbitmqctl', '/usr/sbin/rabbitmqctl'))
    return server.command(control, '-q', *args, **server._env).stdout.decode()


def evaluate(server: Server, expression: str) -> str:
    """Evaluate Erlang on a private RabbitMQ; return the result as Erlang.

    The control program takes seconds to start, this one none.

    :raises RuntimeError: it failed there
    """
    program = binary('erl_call', '/usr/lib/erlang/bin/erl_call')
    address = f'127.0.0.1:{server._env["RABBITMQ_DIST_PORT"]}'
    deadline = time.monotonic() + LIMIT_S
    while True:
        done = subprocess.run(
            [program, '-r', '-address', address,
             '-timeout', f'{LIMIT_S:.0f}', '-e'],
            input=f'{expression}.\n'.encode(),
            check=False, capture_output=True, **server._how({}),
        )  # fmt: skip
        # A node that is busy may refuse a connection, and takes the next one.
        refused = b'failed to connect' in done.stderr
        if not refused or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    text = done.stdout.decode()
    if not text.startswith('{ok, '):
        state = server.process and server.process.poll()
        raise RuntimeError(
            f'{expression}: {text}{done.stderr.decode()} (exit status of the '
            f'server: {state}) {server.log.read_text()[-500:]}'
        )
    return text.removeprefix('{ok, ').removesuffix('}')


def call(server: Server, function: str, *texts: str) -> str:
    """Call a function of a private RabbitMQ; return its result as Erlang."""
    arguments = ', '.join(f'<<"{text}">>' for text in texts)
    return evaluate(server, f'{function}({arguments})')


def rabbitmq_plugin(server: Server, name: str, port: int) -> None:
    """Enable a plug-in of a private RabbitMQ that runs.

    :param port: on which the management interface listens
    """
    setting = f'application:set_env({name}, tcp_config, [{{port, {port}}}])'
    evaluate(server, setting)
    path = server.folder / 'plugins'
    path.write_text(f'[{name}].\n')
    evaluate(server, f'{{ok, _, _}} = rabbit_plugins:ensure("{path}"), ok')


def new_vhost(server: Server, url: str) -> str:
    """Add a virtual host of its own name to a RabbitMQ; return its URL."""
    name = f'v{uuid.uuid4().hex[:8]}'
    call(server, 'rabbit_vhost:add', name, 'guest')
    permit(server, 'guest', name)
    return url + name


def permit(server: Server, user: str, vhost: str = '/') -> None:
    """Let a user do everything in a virtual host of a RabbitMQ."""
    call(server, f'{USERS}:set_permissions', user, vhost, *['.*'] * 3, 'guest')


def names_in(server: Server, url: str, kind: str) -> set[str]:
    """Return the names of queues or exchanges of a virtual host.

    :param url: of the virtual host
    :param kind: ``queues`` or ``exchanges``
    """
    vhost = url.rpartition('/')[2]
    module = {'queues': 'rabbit_amqqueue', 'exchanges': 'rabbit_exchange'}
    # A name is a record: what it is of, the virtual host, the kind, the text.
    printed = evaluate(
        server,
        f'[binary_to_list(element(4, X)) || X <- {module[kind]}:list_names(), '
        f'element(2, X) =:= <<"{vhost}">>]',
    )
    return set(re.findall('"([^"]+)"', printed))


def real_program(wrapper: str) -> str:
    """Return the program behind the distribution's wrapper.

    The wrapper insists on switching users itself.
    """
    name = os.path.basename(wrapper)
    inner = f'/usr/lib/rabbitmq/bin/{name}'
    return inner if os.path.exists(inner) else wrapper
