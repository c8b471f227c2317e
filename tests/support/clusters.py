"""Clusters of servers on loopback: Galera, RabbitMQ, and a PostgreSQL pair."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sa

from tests.support.servers import (
    STARTED,
    Server,
    answers,
    binary,
    evaluate,
    free_port,
    launch_rabbitmq,
)

# What the control program has a node do, which itself takes seconds to start.
# Since 3.12 it is another module that does it.
_JOIN = (
    'case code:ensure_loaded(rabbit_db_cluster) of '
    "{{module, M}} -> M:join('{0}', disc); "
    "_ -> rabbit_mnesia:join_cluster('{0}', disc) end"
)
_LEADER = (
    '{{ok, Q}} = rabbit_amqqueue:lookup('
    'rabbit_misc:r(<<"/">>, queue, <<"{}">>)), amqqueue:get_leader(Q)'
)


@contextlib.contextmanager
def rabbitmq(nodes: int = 3) -> Iterator[tuple[list[Server], str]]:
    """Run a RabbitMQ cluster; yield its nodes and a URL that names them all.

    A hung node is found dead after 20 s, as the net tick time says. With less
    of it, nodes on a busy machine take each other for dead.
    """
    with contextlib.ExitStack() as stack:
        made = [Server('rabbitmq') for _ in range(nodes)]
        for server in made:
            stack.callback(_remove, server)
        cookie = made[0].folder.name
        for server in made:
            path = server.folder / '.erlang.cookie'
            path.write_text(cookie)
            path.chmod(0o400)
            if server.user:
                shutil.chown(path, server.user)
        with ThreadPoolExecutor() as threads:
            started = [
                threads.submit(
                    launch_rabbitmq, server, '-kernel net_ticktime 20'
                )
                for server in made
            ]
            for one in started:
                one.result()
        join = _JOIN.format(made[0]._env['RABBITMQ_NODENAME'])
        for server in made[1:]:
            evaluate(server, 'rabbit:stop()')
            joined = evaluate(server, join)
            if joined != 'ok':
                raise RuntimeError(f'a node does not join: {joined}')
            evaluate(server, 'rabbit:start()')
        yield made, rabbitmq_url(made)


def send(node: Server, number: int) -> None:
    """Send a signal to the process of a RabbitMQ node's runtime.

    :raises OSError: it has ended
    """
    name = node._env['RABBITMQ_NODENAME']
    path = pathlib.Path(node._env['RABBITMQ_MNESIA_BASE']) / f'{name}.pid'
    pid = int(path.read_text())
    # Its number may be that of another process meanwhile.
    if name.encode() not in pathlib.Path(f'/proc/{pid}/environ').read_bytes():
        raise ProcessLookupError(name)
    os.kill(pid, number)


def restart(node: Server) -> None:
    """Start a RabbitMQ node again whose runtime was killed."""
    node.kill(signal.SIGKILL)
    node.relaunch()
    node.wait(lambda: answers(node.port))
    evaluate(node, STARTED)


def leader_of(nodes: list[Server], queue: str) -> Server:
    """Return the node that leads a quorum queue."""
    leader = evaluate(nodes[0], _LEADER.format(queue)).strip("'")
    return next(
        node for node in nodes if node._env['RABBITMQ_NODENAME'] == leader
    )


def _remove(node: Server) -> None:
    """Remove a node, which in an orderly way would wait for the others."""
    with contextlib.suppress(OSError):
        send(node, signal.SIGKILL)
    node.remove()


def rabbitmq_url(nodes: list[Server]) -> str:
    """Return a transport URL that names nodes of a cluster."""
    addresses = ','.join(
        f'guest:guest@127.0.0.1:{server.port}' for server in nodes
    )
    return f'rabbit://{addresses}/'


@dataclasses.dataclass
class PostgreSQLPair:
    """A PostgreSQL server and its standby.

    :ivar url: of both, without the database's name; it leads to the one that
        accepts writes
    :ivar query: has to follow the name of the database in a URL
    """

    primary: Server
    standby: Server
    url: str
    query: str

    def promote(self) -> None:
        """Have the standby accept writes."""
        control = binary('pg_ctl', '/usr/lib/postgresql/*/bin/pg_ctl')
        data = str(self.standby.folder / 'data')
        self.standby.command(control, '-D', data, '-w', 'promote')


@contextlib.contextmanager
def postgresql_pair() -> Iterator[PostgreSQLPair]:
    """Run PostgreSQL and a standby, which has all that was committed."""
    place = '/usr/lib/postgresql/*/bin/'
    postgres = binary('postgres', place + 'postgres')
    with contextlib.ExitStack() as stack:
        primary = Server('postgres', signal.SIGINT, signal.SIGQUIT)
        standby = Server('postgres', signal.SIGINT, signal.SIGQUIT)
        stack.callback(primary.remove)
        stack.callback(standby.remove)
        data = primary.folder / 'data'
        primary.command(
            binary('initdb', place + 'initdb'),
            '-D', str(data), '-A', 'trust', '-U', 'test', '-E', 'UTF8',
            '--no-sync',
        )  # fmt: skip

        def start(server: Server, *more: str) -> None:
            server.launch(
                [
                    postgres, '-D', str(server.folder / 'data'),
                    '-p', str(server.port), '-k', str(server.folder),
                    '-c', 'listen_addresses=127.0.0.1',
                    '-c', 'max_connections=200', *more,
                ]
            )  # fmt: skip
            server.wait(lambda: answers(server.port))

        start(primary)
        _wait_for_sql(primary)
        standby.command(
            binary('pg_basebackup', place + 'pg_basebackup'),
            '-h', '127.0.0.1', '-p', str(primary.port), '-U', 'test',
            '-D', str(standby.folder / 'data'), '-R', '--checkpoint=fast',
        )  # fmt: skip
        start(standby)
        _execute(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        _execute(primary, 'SELECT pg_reload_conf()')
        primary.wait(lambda: _is_synchronous(primary))
        hosts = '&'.join(
            f'host=127.0.0.1:{server.port}' for server in (primary, standby)
        )
        yield PostgreSQLPair(
            primary,
            standby,
            f'postgresql+psycopg://test@127.0.0.1:{primary.port}/',
            f'?{hosts}&target_session_attrs=read-write',
        )


@contextlib.contextmanager
def galera(nodes: int = 3) -> Iterator[list[tuple[Server, str]]]:
    """Run a Galera cluster of MariaDB; yield each node and its URL.

    All nodes start from copies of one data folder, so that none has to fetch
    everything from another.
    """
    daemon = binary('mariadbd', '/usr/sbin/mariadbd')
    install = binary('mariadb-install-db', '/usr/bin/mariadb-install-db')
    provider = binary('libgalera_smm.so', '/usr/lib/galera/libgalera_smm.so')
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(nodes):
            made.append(Server('mysql', signal.SIGTERM, signal.SIGKILL))
            stack.callback(made[-1].remove)
        first = made[0]
        data = first.folder / 'data'
        first.command(
            install, '--no-defaults', f'--datadir={data}',
            '--auth-root-authentication-method=normal', '--skip-test-db',
        )  # fmt: skip
        init = first.folder / 'init.sql'
        init.write_text(
            "CREATE USER 'test'@'127.0.0.1' IDENTIFIED BY 'test';\n"
            "GRANT ALL ON *.* TO 'test'@'127.0.0.1';\n"
        )
        group_ports = [free_port() for _ in made]
        members = ','.join(f'127.0.0.1:{port}' for port in group_ports)
        urls = [f'mysql+pymysql://test:test@127.0.0.1:{one.port}/'
                for one in made]  # fmt: skip

        def start(number: int, *more: str) -> None:
            server = made[number]
            options = (
                f'gmcast.listen_addr=tcp://127.0.0.1:{group_ports[number]};'
                f'ist.recv_addr=127.0.0.1:{free_port()};gcache.size=32M;'
                'evs.keepalive_period=PT0.5S;evs.suspect_timeout=PT2S;'
                'evs.inactive_timeout=PT4S'
            )
            arguments = [
                daemon, '--no-defaults', f'--datadir={server.folder}/data',
                f'--socket={server.folder}/sock', f'--port={server.port}',
                f'--server-id={number + 1}', '--bind-address=127.0.0.1',
                '--skip-name-resolve', '--max-connections=200',
                '--binlog-format=ROW', '--innodb-autoinc-lock-mode=2',
                '--innodb-flush-log-at-trx-commit=0', '--wsrep-on=ON',
                f'--wsrep-provider={provider}',
                f'--wsrep-cluster-address=gcomm://{members}',
                '--wsrep-node-address=127.0.0.1',
                f'--wsrep-node-incoming-address=127.0.0.1:{server.port}',
                '--wsrep-sst-method=rsync',
                f'--wsrep-provider-options={options}',
            ]  # fmt: skip
            server.launch([*arguments, *more])
            server.wait(lambda: _is_synced(urls[number]))
            # It joins the others when it is started again.
            server._args = arguments

        start(0, '--wsrep-new-cluster', f'--init-file={init}')
        first.kill()
        for other in made[1:]:
            other.command('cp', '-r', str(data), str(other.folder / 'data'))
        start(0, '--wsrep-new-cluster')
        for number in range(1, nodes):
            start(number)
        yield list(zip(made, urls, strict=True))


def _is_synced(url: str) -> bool:
    """Whether a node of a Galera cluster takes part in it."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    try:
        with engine.connect() as conn:
            found = conn.exec_driver_sql(
                "SHOW STATUS LIKE 'wsrep_local_state_comment'"
            ).one()
    except sa.exc.OperationalError:
        return False
    return bool(found[1] == 'Synced')


def _is_synchronous(primary: Server) -> bool:
    """Whether commits wait for the standby.

    A standby is called so only where the primary is set to wait for it.
    """
    states = 'SELECT sync_state FROM pg_stat_replication'
    return _execute(primary, states) == ['sync']


def _execute(server: Server, statement: str) -> list[object]:
    """Run a statement; return the first column of its rows."""
    url = f'postgresql+psycopg://test@127.0.0.1:{server.port}/postgres'
    engine = sa.create_engine(
        url, poolclass=sa.NullPool, isolation_level='AUTOCOMMIT'
    )
    with engine.connect() as conn:
        found = conn.exec_driver_sql(statement)
        return list(found.scalars()) if found.returns_rows else []


def _wait_for_sql(server: Server) -> None:
    def accepts() -> bool:
        try:
            _execute(server, 'SELECT 1')
        except sa.exc.OperationalError:
            return False
        return True

    server.wait(accepts)
