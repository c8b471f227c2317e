"""What a driver's exception means: a full disk, a file that is read-only.

Stateless; any thread may call any function. Nothing that a statement or its
values can cause is recognised here: only what an operator has to put right,
after which the same statement works.
"""

from __future__ import annotations

import re
from typing import Any

# What is wrong, and what to do about it.
_FULL = 'The disk of the database is full'
_READ_ONLY = 'The database is read-only'
_REFUSED = 'The database refuses this user'
_ABSENT = 'There is no such database'
_NOT_OURS = 'The file is not a database, or is damaged'
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
    _NOT_OURS: 'check [database] connection, or restore a backup',
    _NO_FILE: 'check that its folder is there, and that this user may write '
    'to both',
    _UNREADABLE: 'check its disk',
    _NO_TABLE: 'wait for the end of a restore, or run "scheduler-manage db '
    'sync"',
}
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
    'file is not a database': _NOT_OURS,
    'database disk image is malformed': _NOT_OURS,
    'unable to open database file': _NO_FILE,
    'disk I/O error': _UNREADABLE,
}
_WHILE_CONNECTING = {
    'password authentication failed': _REFUSED,
    'no password supplied': _REFUSED,
    'no pg_hba.conf entry': _REFUSED,
    'permission denied for database': _REFUSED,
}
_ABSENT_NAME = re.compile(r'(database|role) "[^"]*" does not exist')
_DRIVER = re.compile(r'^\([\w.]+\) ')


def driver_fault(fault: BaseException) -> Any:
    """Return the driver's exception inside SQLAlchemy's and oslo.db's."""
    inner = getattr(fault, 'inner_exception', None) or fault
    return getattr(inner, 'orig', inner)


def first_line(fault: BaseException) -> str:
    """Return the first line of a driver's message, without the statement."""
    line = str(fault).strip().partition('\n')[0][:300]
    return _DRIVER.sub('', line)


def sentence(fault: BaseException) -> str | None:
    """Return what is wrong with the database; None: nothing known."""
    inner = driver_fault(fault)
    kind = _kind(inner)
    if kind is None:
        return None
    return f'{kind}: {first_line(inner)}'


def meaning(sqlstate: str | None) -> str | None:
    """Return what is wrong where PostgreSQL gives this code; None: unknown."""
    return _BY_SQLSTATE.get(sqlstate or '')


def advice(text: str) -> str:
    """Return what an operator can do about an error with this message."""
    for kind, todo in ADVICE.items():
        if text.startswith(kind):
            return todo
    return _NO_ANSWER


def _kind(fault: Any) -> str | None:
    state = getattr(fault, 'sqlstate', None)
    if state in _BY_SQLSTATE:
        return _BY_SQLSTATE[state]
    arguments = getattr(fault, 'args', ())
    code = next(iter(arguments), None)
    if isinstance(code, int):
        return _BY_NUMBER.get(code)
    text = str(code)
    for beginning, kind in _BY_TEXT.items():
        if text.startswith(beginning):
            return kind
    if text.startswith('connection failed'):
        return _while_connecting(text)
    return None


def _while_connecting(text: str) -> str | None:
    for words, kind in _WHILE_CONNECTING.items():
        if words in text:
            return kind
    found = _ABSENT_NAME.search(text)
    if found is None:
        return None
    return _ABSENT if found[1] == 'database' else _REFUSED
