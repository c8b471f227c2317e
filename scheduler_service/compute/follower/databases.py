"""Connections to the compute service's databases, which are only read.

Each session is told to the server as read-only, so that a statement that
writes fails whatever the user's rights are. A :class:`ReadOnlyDatabase` may
be used by any thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa
from sqlalchemy.engine import Connection, make_url

from scheduler_service import errors
from scheduler_service.store.sessions import APPLICATION

# Drivers that the compute service may name, and those that we have.
_DRIVERS = {
    'mysql': 'mysql+pymysql',
    'mysql+mysqldb': 'mysql+pymysql',
    'mariadb': 'mysql+pymysql',
    'postgresql': 'postgresql+psycopg',
    'postgresql+psycopg2': 'postgresql+psycopg',
}


class ReadOnlyDatabase:
    """One of the compute service's databases.

    :param url: as the compute service writes it
    :param connect_timeout: seconds
    :param statement_timeout: seconds
    :raises ConfigurationError: the URL cannot be used
    """

    def __init__(
        self, url: str, connect_timeout: float, statement_timeout: float
    ) -> None:
        try:
            parsed = make_url(url)
            parsed = parsed.set(
                drivername=_DRIVERS.get(parsed.drivername, parsed.drivername)
            )
            kind = parsed.get_backend_name()
            self._engine = sa.create_engine(
                parsed,
                connect_args=_arguments(
                    kind, connect_timeout, statement_timeout
                ),
                pool_pre_ping=True,
                # Those of idle cells are not kept open for long by servers.
                pool_recycle=300,
                **({} if kind == 'sqlite' else {'pool_size': 2}),
            )
        except (sa.exc.ArgumentError, ImportError, ValueError) as fault:
            # Without the URL, which may hold a password.
            raise errors.ConfigurationError(
                f'A database URL of the compute service cannot be used: '
                f'{type(fault).__name__}'
            ) from None
        if kind == 'sqlite':
            sa.event.listen(self._engine, 'connect', _forbid_writing)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection in a transaction that can only read.

        :raises sqlalchemy.exc.SQLAlchemyError: the database does not answer
        """
        with self._engine.connect() as conn, conn.begin():
            yield conn

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def filled_in(template: str, base: str) -> str:
    """Return the URL of a cell's database from its mapping.

    :param template: the mapping's URL, which may name parts of *base*:
        scheme, username, password, hostname, port, path, query, fragment;
        and username1, hostname1 and so on where *base* lists several servers
    :raises ConfigurationError: it names a part that *base* does not have
    """
    if '{' not in template:
        return template
    try:
        return template.format(**_parts(base))
    except (KeyError, IndexError, ValueError) as fault:
        raise errors.ConfigurationError(
            f'A cell mapping names a part of the database URL that '
            f'[compute] cell_database does not have: {fault}'
        ) from None


def _parts(url: str) -> dict[str, Any]:
    split = urlsplit(url)
    servers = split.netloc.split(',')
    parts: dict[str, Any] = {
        'scheme': split.scheme,
        'path': split.path.lstrip('/'),
        'query': split.query,
        'fragment': split.fragment,
    }
    for number, server in enumerate(servers):
        suffix = str(number + 1) if len(servers) > 1 else ''
        one = urlsplit(f'//{server}')
        for name in ('username', 'password', 'hostname', 'port'):
            value = getattr(one, name)
            if value is not None or not suffix:
                parts[name + suffix] = value
            if number == 0:
                parts.setdefault(name, value)
    return parts


def _arguments(
    kind: str, connect_timeout: float, statement_timeout: float
) -> dict[str, Any]:
    """Return what the driver is told of time limits, and of only reading."""
    limit_ms = int(statement_timeout * 1000)
    if kind == 'postgresql':
        return {
            'connect_timeout': int(connect_timeout),
            'application_name': APPLICATION,
            'options': '-c default_transaction_read_only=on '
            f'-c statement_timeout={limit_ms}',
            # Where the server is gone without a word.
            'tcp_user_timeout': limit_ms,
        }
    if kind == 'mysql':
        return {
            'connect_timeout': int(connect_timeout),
            'read_timeout': int(statement_timeout),
            'write_timeout': int(statement_timeout),
            'init_command': 'SET SESSION TRANSACTION READ ONLY',
        }
    return {}


def _forbid_writing(dbapi_conn: Any, record: Any) -> None:
    dbapi_conn.execute('PRAGMA query_only = ON')
