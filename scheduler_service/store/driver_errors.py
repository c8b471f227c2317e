"""What exceptions of database drivers mean, and which errors they become.

Stateless; any thread may call any function. Nothing that a statement or its
values can cause is recognised: only locks and statements that took too long,
conflicts of transactions, and what an operator has to put right, after which
the same statement works.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception

from scheduler_service import errors

# What is wrong, and what to do about it.
_FULL = 'The disk of the database is full'
_READ_ONLY = 'The database is read-only'
_REFUSED = 'The database refuses this user'
_ABSENT = 'There is no such database'
_NOT_A_DATABASE = 'The file is not a database, or is damaged'
_NO_FILE = 'The file of the database cannot be opened'
_UNREADABLE = 'The file of the database cannot be read or written'
_NO_TABLE = 'A table of the database is missing'
ADVICE = {
    _FULL: 'make room there',
    _READ_ONLY: 'use the primary server, and for SQLite a file and a folder '
    'that this user may write to',
    _REFUSED: 'check user and password of [database] connection, and what '
    'the user is allowed to do',
    _ABSENT: 'create it, or check [database] connection',
    _NOT_A_DATABASE: 'check [database] connection, or restore a backup',
    _NO_FILE: 'check that its folder is there, and that this user may write '
    'to both',
    _UNREADABLE: 'check its disk',
    _NO_TABLE: 'wait for the end of a restore, or run "scheduler-manage db '
    'sync"',
}
_SILENT = 'The database does not answer'
_NO_ANSWER = 'check that the server runs, and [database] connection'
_BY_SQLSTATE = {
    '53100': _FULL,
    '25006': _READ_ONLY,
    '28000': _REFUSED,
    '28P01': _REFUSED,
    '42501': _REFUSED,
    '3D000': _ABSENT,
    '42P01': _NO_TABLE,
}
# Of MariaDB and MySQL.
_BY_NUMBER = {
    1021: _FULL,
    1114: _FULL,
    1290: _READ_ONLY,
    1792: _READ_ONLY,
    1836: _READ_ONLY,
    1044: _REFUSED,
    1045: _REFUSED,
    1142: _REFUSED,
    1698: _REFUSED,
    1049: _ABSENT,
    1146: _NO_TABLE,
}
# Beginnings of messages: of SQLite, which has no numbers here, and of
# PostgreSQL while a connection is made, when the driver gives no SQLSTATE.
_BY_TEXT = {
    'database or disk is full': _FULL,
    'attempt to write a readonly database': _READ_ONLY,
    'file is not a database': _NOT_A_DATABASE,
    'database disk image is malformed': _NOT_A_DATABASE,
    'unable to open database file': _NO_FILE,
    'disk I/O error': _UNREADABLE,
}
_REFUSALS = (
    'password authentication failed',
    'no password supplied',
    'no pg_hba.conf entry',
    'permission denied for database',
)
_ABSENT_NAME = re.compile(r'(database|role) "[^"]*" does not exist')
_DRIVER = re.compile(r'^\([\w.]+\) ')
# A lock or a statement took too long, by driver.
PG_TIMEOUTS = frozenset(('55P03', '57014'))
_MYSQL_TIMEOUTS = frozenset((1205, 1969, 3024))
_SQLITE_TIMEOUTS = frozenset(('database is locked', 'interrupted'))
SERIALIZATION = '40001'
# Drivers raise these for a server that refuses connections, restarts or shuts
# down; oslo.db does not recognise every one as a lost connection.
_LOST = (sa.exc.OperationalError, sa.exc.InterfaceError)
_UNREACHABLE = (
    db_exception.DBConnectionError,
    db_exception.CantStartEngineError,
    sa.exc.TimeoutError,
)


class TransactionOvertaken(Exception):
    """Others committed what a transaction should have seen: it runs again."""


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Raise StoreUnavailable where the code inside loses the database.

    :raises StoreUnavailable: the database does not answer, has no tables, or
        cannot store anything, such as on a full disk
    :raises StoreTimeout: it does, but a lock or a statement took too long
    """
    try:
        yield
    except _UNREACHABLE as fault:
        raise unavailable(fault) from fault
    except db_exception.DBNonExistentTable as fault:
        raise errors.StoreUnavailable(
            f'The database has no tables yet, or not the table {fault.table}: '
            'run "scheduler-manage db sync"'
        ) from fault
    except (sa.exc.DBAPIError, db_exception.DBError) as fault:
        if sentence(fault) is None and met_others(fault):
            raise errors.StoreTimeout(
                'The database takes too long: '
                f'{first_line(driver_fault(fault))}'
            ) from fault
        inner = getattr(fault, 'inner_exception', fault)
        if sentence(fault) is None and not isinstance(inner, _LOST):
            raise
        raise unavailable(inner) from fault


def unavailable(fault: BaseException) -> errors.StoreUnavailable:
    """Return the error for a database that is lost, as an exception shows."""
    text = sentence(fault)
    return errors.StoreUnavailable(text or f'{_SILENT}: {first_line(fault)}')


def is_silent(error: errors.StoreUnavailable) -> bool:
    """Whether there was no answer, not one that says what is wrong."""
    return str(error).startswith(_SILENT)


@contextlib.contextmanager
def translate_connect_errors(dialect: Any) -> Iterator[None]:
    """Translate what the driver raises where it makes no connection.

    A file that is missing, such as that of a CA, counts as a server that does
    not answer: it may be there later.

    :param dialect: of SQLAlchemy, with its driver
    :raises ConfigurationError: the URL has parameters that the driver does
        not take
    """
    driver = dialect.loaded_dbapi
    try:
        yield
    except (driver.ProgrammingError, TypeError) as fault:
        raise errors.ConfigurationError(
            '[database] connection: the driver does not take it: '
            + ' '.join(str(fault).split())
        ) from None
    except OSError as fault:
        raise driver.OperationalError(str(fault)) from fault


def is_timeout(fault: BaseException) -> bool:
    """Whether a lock or a statement took too long.

    :param fault: as SQLAlchemy or oslo.db raised it
    """
    inner = driver_fault(fault)
    if getattr(inner, 'sqlstate', None) in PG_TIMEOUTS:
        return True
    code = next(iter(getattr(inner, 'args', ())), None)
    return code in _MYSQL_TIMEOUTS or code in _SQLITE_TIMEOUTS


def conflict(fault: BaseException) -> str | None:
    """Return why a transaction failed only because of concurrent ones.

    :param fault: as SQLAlchemy or oslo.db raised it
    :return: ``deadlock``, also on Galera where a transaction of another node
        came first, or ``serialization``; None: it did not
    """
    if isinstance(fault, db_exception.DBDeadlock):
        return 'deadlock'
    if (
        isinstance(fault, TransactionOvertaken)
        or getattr(driver_fault(fault), 'sqlstate', None) == SERIALIZATION
    ):
        return 'serialization'
    return None


def met_others(fault: BaseException) -> bool:
    """Whether a transaction failed because of concurrent ones or locks.

    :param fault: as SQLAlchemy or oslo.db raised it
    """
    return is_timeout(fault) or conflict(fault) is not None


def driver_fault(fault: BaseException) -> Any:
    """Return the driver's exception inside SQLAlchemy's and oslo.db's."""
    inner = getattr(fault, 'inner_exception', None) or fault
    return getattr(inner, 'orig', None) or inner


def first_line(fault: BaseException) -> str:
    """Return the first line of a driver's message, without the statement."""
    line = str(fault).strip().partition('\n')[0][:300]
    return _DRIVER.sub('', line)


def sentence(fault: BaseException) -> str | None:
    """Return what is wrong with the database; None: unknown."""
    inner = driver_fault(fault)
    kind = _kind(inner)
    return None if kind is None else f'{kind}: {first_line(inner)}'


def meaning(sqlstate: str | None) -> str | None:
    """Return what is wrong where PostgreSQL gives this code; None: unknown."""
    return _BY_SQLSTATE.get(sqlstate or '')


def advice(text: str) -> str:
    """Return what an operator can do about an error with this message."""
    fitting = (todo for kind, todo in ADVICE.items() if text.startswith(kind))
    return next(fitting, _NO_ANSWER)


def _kind(fault: Any) -> str | None:
    state = getattr(fault, 'sqlstate', None)
    if state in _BY_SQLSTATE:
        return _BY_SQLSTATE[state]
    code = next(iter(getattr(fault, 'args', ())), None)
    if isinstance(code, int):
        return _BY_NUMBER.get(code)
    text = str(code)
    for beginning, kind in _BY_TEXT.items():
        if text.startswith(beginning):
            return kind
    if text.startswith('connection failed'):
        if any(words in text for words in _REFUSALS):
            return _REFUSED
        absent = _ABSENT_NAME.search(text)
        if absent is not None:
            return _ABSENT if absent[1] == 'database' else _REFUSED
    return None
