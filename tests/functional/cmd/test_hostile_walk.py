"""Every command where something it needs is missing, full or not text.

The commands and their arguments are read off the parser, so a new command is
walked over as well.
"""

from __future__ import annotations

import json
import socket
import sqlite3

import pytest
import sqlalchemy as sa
import yaml

from scheduler_service.cmd import manage
from tests.support import databases
from tests.support.documents import INVENTORY, SMALL

pytestmark = pytest.mark.slow
UUID = '22222222-0000-4000-8000-000000000001'
SECRET = 'hunter2'
# Arguments by their names; of others, any word will do.
VALUES = {
    'host': 'compute-1',
    'pool': 'default',
    'aggregate': '1',
    'instance': UUID,
    'attribute': 'k=v',
    'property': 'k=v',
    'before': '30d',
}
CLOSED = '127.0.0.1:1'
UNREACHABLE = {
    'PostgreSQL': f'postgresql+psycopg://u:{SECRET}@{CLOSED}/db',
    'MariaDB': f'mysql+pymysql://u:{SECRET}@{CLOSED}/db',
    'a name of PostgreSQL': f'postgresql+psycopg://u:{SECRET}@no.invalid/db',
    'a name of MariaDB': f'mysql+pymysql://u:{SECRET}@no.invalid/db',
    'a folder': 'sqlite:////no/such/folder/a.sqlite',
}
# Commands that change something need more than to read.
WRITING = {
    'inventory import', 'pool create', 'pool set', 'pool delete',
    'host enable', 'host disable', 'host remove', 'aggregate create',
    'aggregate set', 'aggregate delete', 'server-group create',
    'claim release',
}  # fmt: skip


def arguments(command, folder):
    """Return the words of a command with what it requires."""
    words = command.split()
    for action in PARSERS[command]._actions:
        if action.option_strings and not action.required:
            continue
        if action.nargs == 0:
            words.append(action.option_strings[-1])
            continue
        if action.dest in ('file', 'request'):
            value = str(folder / f'{action.dest}.yaml')
        elif action.choices:
            value = next(iter(action.choices))
        else:
            value = VALUES.get(action.dest, 'word')
        given = [] if action.nargs == 0 else [value]
        words += [*action.option_strings[-1:], *given]
    if command == 'zone schedule':
        words += ['--name', 'example.org.']
    return words


PARSERS = manage.App().parsers()
COMMANDS = sorted(PARSERS)
# Of each group of commands one, and one that changes something.
SOME = [
    'audit', 'capacity', 'claim list', 'claim release', 'decision list',
    'host disable', 'host list', 'inventory import', 'pool create',
    'zone list',
]  # fmt: skip
# Commands that ask a daemon, unless they are told not to.
CALLING = ['ping', 'top', 'release', 'select', 'zone schedule']


@pytest.fixture
def walk(tmp_path, capfd):
    """Give a function that runs all commands: command -> (status, error)."""
    (tmp_path / 'file.yaml').write_text(yaml.safe_dump(INVENTORY))
    (tmp_path / 'request.yaml').write_text(json.dumps({'flavor': SMALL}))
    config = tmp_path / 'walk.conf'

    def run(connection, bus='inproc://nobody/', only=COMMANDS):
        config.write_text(
            f'[DEFAULT]\ntransport_url = {bus}\nrpc_response_timeout = 1\n'
            f'[database]\nconnection = {connection}\n'
            '[pool_scheduler]\nscheduler_filters = attribute, random\n'
        )
        found = {}
        for command in only:
            words = arguments(command, tmp_path)
            if only is COMMANDS and command in CALLING[2:]:
                words.append('--local')
            status = manage.main(['--config-file', str(config), *words])
            told = capfd.readouterr()
            assert status in (0, 1), command
            assert SECRET not in told.out + told.err, command
            assert 'Traceback' not in told.out + told.err, command
            assert 'not expected' not in told.err, (command, told.err)
            lines = told.err.splitlines()
            assert len(lines) <= 1, (command, told.err)
            found[command] = status, told.err
        return found

    return run


def errors_of(found, name):
    """Return the commands that failed with an error of a name."""
    return {
        command: text
        for command, (status, text) in found.items()
        if status == 1 and text.startswith(f'{name}: ')
    }


@pytest.fixture
def stored(tmp_path):
    """A file with tables and an inventory."""
    url = databases.migrated_database(f'sqlite:///{tmp_path}/')
    config = tmp_path / 'stored.conf'
    config.write_text(f'[database]\nconnection = {url}\n')
    document = tmp_path / 'stored.yaml'
    document.write_text(yaml.safe_dump(INVENTORY))
    done = manage.main(
        ['--config-file', str(config), 'inventory', 'import', str(document)]
    )
    assert done == 0
    return url


@pytest.mark.parametrize('kind', UNREACHABLE)
def test_commands_say_where_the_database_should_be(walk, kind):
    url = UNREACHABLE[kind]
    place = sa.engine.make_url(url).database if kind == 'a folder' else (
        CLOSED if CLOSED in url else 'no.invalid'
    )  # fmt: skip
    only = COMMANDS if kind == 'a folder' else ['db sync', 'host list']
    failed = errors_of(walk(url, only=only), 'StoreUnavailable')
    assert len(failed) >= (30 if only is COMMANDS else 2)
    for text in failed.values():
        assert place in text
        assert 'check' in text


def test_commands_say_where_the_broker_should_be(walk, stored):
    bus = f'rabbit://u:{SECRET}@{CLOSED}/v'
    failed = errors_of(walk(stored, bus, CALLING), 'ServiceBusy')
    assert sorted(failed) == sorted(CALLING)
    for text in failed.values():
        assert f'rabbit://u@{CLOSED}/v' in text
        assert 'transport_url' in text


def test_commands_say_that_no_daemon_answers(walk, stored):
    failed = errors_of(walk(stored, only=['ping', 'release']), 'ServiceBusy')
    assert all('No daemon answered on topic' in one for one in failed.values())
    assert len(failed) == 2


def test_commands_name_the_version_of_the_tables(walk, stored):
    path = stored.removeprefix('sqlite:///')
    with sqlite3.connect(path) as conn:
        conn.execute("UPDATE alembic_version SET version_num = '9999'")
        conn.execute('DELETE FROM compatible_versions')
    conn.close()
    failed = errors_of(walk(stored, only=SOME), 'SchemaMismatch')
    assert [*failed] == SOME
    assert all('version 9999' in text for text in failed.values())


def test_commands_say_that_there_are_no_tables(walk, tmp_path):
    url = f'sqlite:///{tmp_path}/empty.sqlite'
    failed = errors_of(walk(url, only=SOME), 'StoreUnavailable')
    assert [*failed] == SOME
    assert all('db sync' in text for text in failed.values())


def test_commands_say_that_the_disk_is_full(walk, tmp_path, stored):
    many = [{'host': f'more-{number}'} for number in range(500)]
    (tmp_path / 'file.yaml').write_text(json.dumps({'hosts': many}))

    @sa.event.listens_for(sa.engine.Engine, 'connect')
    def fill(conn, record):
        # As on a full disk: no page more than there are.
        conn.execute('PRAGMA max_page_count = 1')

    try:
        found = walk(stored)
    finally:
        sa.event.remove(sa.engine.Engine, 'connect', fill)
    failed = errors_of(found, 'StoreUnavailable')
    assert 'inventory import' in failed
    for text in failed.values():
        assert 'The disk of the database is full' in text
        assert 'make room' in text


def test_commands_say_that_the_file_is_read_only(walk, stored):
    path = stored.removeprefix('sqlite:///')
    with sqlite3.connect(path) as conn:
        conn.execute('PRAGMA journal_mode = DELETE')
    conn.close()
    found = walk(f'sqlite:///file:{path}?mode=ro&uri=true')
    failed = errors_of(found, 'StoreUnavailable')
    assert failed.keys() >= WRITING
    assert all('read-only' in text for text in failed.values())


def test_commands_say_that_the_file_is_no_database(walk, tmp_path):
    (tmp_path / 'a.sqlite').write_bytes(bytes(range(256)) * 16)
    failed = errors_of(
        walk(f'sqlite:///{tmp_path}/a.sqlite', only=SOME), 'StoreUnavailable'
    )
    assert [*failed] == SOME
    assert all('not a database' in text for text in failed.values())


@pytest.mark.db
def test_commands_say_that_a_user_may_not(walk, postgresql):
    base = postgresql[1]
    url = databases.migrated_database(base)
    engine = sa.create_engine(url)
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE ROLE stranger LOGIN PASSWORD 'x'")
    engine.dispose()
    asked = sa.engine.make_url(url).set(username='stranger', password=SECRET)
    found = walk(asked.render_as_string(hide_password=False), only=SOME)
    failed = errors_of(found, 'StoreUnavailable')
    assert [*failed] == SOME
    for text in failed.values():
        assert 'The database refuses this user' in text
        assert f'stranger@{asked.host}' in text


@pytest.mark.parametrize('word', ['file', 'request'])
def test_documents_that_are_garbage_are_called_so(
    walk, tmp_path, stored, word
):
    path = tmp_path / f'{word}.yaml'
    path.write_bytes(b'\x00\xff\xfe[{')
    reads = [
        command
        for command in COMMANDS
        if str(path) in arguments(command, tmp_path)
    ]
    found = walk(stored, only=reads)
    assert found
    for status, text in found.values():
        assert status == 1
        assert str(path) in text


def test_documents_that_are_not_there_are_called_so(walk, tmp_path, stored):
    (tmp_path / 'file.yaml').unlink()
    found = walk(stored, only=['inventory import'])
    assert 'file.yaml: No such file' in found['inventory import'][1]


def test_a_command_gives_up_when_its_time_is_over(tmp_path, capsys):
    # Nobody accepts what connects.
    with socket.socket() as server:
        server.bind(('127.0.0.1', 0))
        server.listen(0)
        host, port = server.getsockname()
        config = tmp_path / 'a.conf'
        config.write_text(
            f'[database]\nconnection = postgresql+psycopg://u@{host}:{port}/d'
        )
        status = manage.main(
            ['--config-file', str(config), 'host', 'list', '--timeout', '1']
        )
    told = capsys.readouterr().err
    assert status == 1
    assert told.startswith('TooLate: Not done within 1 s')
    assert f'{host}:{port}' in told
