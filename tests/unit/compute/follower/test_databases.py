"""URLs of cells' databases, as cell mappings have them."""

import contextlib
import datetime

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.compute.follower.databases import (
    ReadOnlyDatabase,
    filled_in,
    unusual_services,
)

BASE = 'mysql+pymysql://u:p@10.0.0.1:3306/nova?charset=utf8'


@pytest.mark.parametrize(
    ('template', 'url'),
    [
        ('sqlite:////x', 'sqlite:////x'),
        (
            '{scheme}://{username}:{password}@{hostname}:{port}/c1?{query}',
            'mysql+pymysql://u:p@10.0.0.1:3306/c1?charset=utf8',
        ),
        (
            '{scheme}://{hostname}/{path}_c1',
            'mysql+pymysql://10.0.0.1/nova_c1',
        ),
    ],
)
def test_parts_are_filled_in(template, url):
    assert filled_in(template, BASE) == url


def test_several_servers_have_numbers():
    base = 'rabbit://a:b@h1:1,c:d@h2:2/x'
    template = '{username1}@{hostname1}:{port1} {username2}@{hostname2}'
    assert filled_in(template, base) == 'a@h1:1 c@h2'


def test_a_part_that_is_missing_is_an_error():
    with pytest.raises(errors.ConfigurationError, match='hostname2'):
        filled_in('mysql://{hostname2}/x', BASE)


@pytest.mark.parametrize('url', ['no url', 'nodriver://h/x'])
def test_a_url_that_cannot_be_used_is_an_error_without_the_url(url):
    with pytest.raises(errors.ConfigurationError) as caught:
        ReadOnlyDatabase(url, 3, 20)
    assert url not in str(caught.value)


def test_a_file_is_only_read(tmp_path):
    database = ReadOnlyDatabase(f'sqlite:///{tmp_path}/a.sqlite', 3, 20)
    with (
        contextlib.closing(database),
        pytest.raises(sa.exc.DBAPIError, match='readonly'),
        database.reading() as conn,
    ):
        conn.exec_driver_sql('CREATE TABLE a (b int)')


NOW = datetime.datetime(2026, 1, 1, 12, 0, 0)
LONG = datetime.timedelta(seconds=61)


@pytest.mark.parametrize(
    ('values', 'state'),
    [
        ({'last_seen_up': NOW}, None),
        ({'last_seen_up': NOW - LONG}, (False, None, False)),
        ({'last_seen_up': NOW + LONG}, (False, None, False)),
        ({'created_at': NOW}, None),
        ({}, (False, None, False)),
        ({'last_seen_up': NOW, 'forced_down': True}, (False, None, False)),
        ({'created_at': NOW, 'disabled': True}, (True, 'fan', True)),
    ],
)
def test_services_that_are_disabled_or_down(values, state):
    columns = (
        sa.Column('host', sa.Text),
        sa.Column('binary', sa.Text),
        sa.Column('deleted', sa.Integer),
        sa.Column('disabled', sa.Boolean),
        sa.Column('disabled_reason', sa.Text),
        sa.Column('forced_down', sa.Boolean),
        sa.Column('last_seen_up', sa.DateTime),
        sa.Column('created_at', sa.DateTime),
    )
    table = sa.Table('services', sa.MetaData(), *columns)
    row = {
        'host': 'h', 'binary': 'nova-compute', 'deleted': 0,
        'disabled_reason': 'fan', **values,
    }  # fmt: skip
    engine = sa.create_engine('sqlite://')
    with engine.begin() as conn:
        table.create(conn)
        conn.execute(sa.insert(table).values(row))
        found = unusual_services(conn, NOW, 60.0)
    engine.dispose()
    assert found.get('h') == state
