"""The statements for MariaDB on the pages give the rights that are needed."""

import contextlib
import re
import uuid

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from scheduler_service.cmd import manage
from tests.support import page_commands

pytestmark = pytest.mark.db


@contextlib.contextmanager
def connection(url):
    """Connect with autocommit."""
    engine = sa.create_engine(url, isolation_level='AUTOCOMMIT')
    with engine.connect() as conn:
        yield conn
    engine.dispose()


def run(base, text):
    """Run statements as a user who may do everything.

    The driver would take the % of an address for a parameter.
    """
    with connection(base) as conn:
        for statement in text.split(';')[:-1]:
            conn.exec_driver_sql(statement.strip().replace('%', '%%'))


def url_of(base, user, database):
    """Return the URL of a database for another user."""
    place = base.rpartition('@')[2]
    return f'mysql+pymysql://{user}:secret@{place}{database}'


def test_the_user_of_the_daemon_may_do_what_it_does(mariadb, tmp_path, capsys):
    page = page_commands.page('install')
    _, text = page_commands.of_language(page, 'sql')
    name = f'scheduler{uuid.uuid4().hex[:8]}'
    run(mariadb[1], text.replace('scheduler', name))
    (on_page,) = re.findall(r'``(mysql\+pymysql://.*?)``', page.read_text())
    url = on_page.replace('scheduler', name).replace(
        'localhost', f'127.0.0.1:{sa.make_url(mariadb[1]).port}'
    )
    config = tmp_path / 'a.conf'
    config.write_text(f'[database]\nconnection = {url}\n')
    for command in ('db sync', 'db check', 'host list'):
        words = ['--config-file', str(config), *command.split()]
        assert manage.main(words) == 0, capsys.readouterr().err


def test_the_reader_of_the_compute_service_may_read_alone(mariadb):
    page = page_commands.page('placement')
    (text,) = page_commands.of_language(page, 'sql')
    mark = uuid.uuid4().hex[:8]
    names = {
        name: f'{name}{mark}' for name in ('nova_api', 'nova_cell1', 'reader')
    }
    for name, own in names.items():
        text = text.replace(name, own)
    for database in ('nova_api', 'nova_cell1'):
        run(
            mariadb[1],
            f'CREATE DATABASE {names[database]};'
            f'CREATE TABLE {names[database]}.a (b INTEGER);',
        )
    run(mariadb[1], text)
    for database in ('nova_api', 'nova_cell1'):
        url = url_of(mariadb[1], names['reader'], names[database])
        with connection(url) as conn:
            assert conn.exec_driver_sql('SELECT * FROM a').all() == []
            with pytest.raises(DBAPIError, match='denied'):
                conn.exec_driver_sql('INSERT INTO a VALUES (1)')
