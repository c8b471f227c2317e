"""Migrations lead to the tables of the models."""

from __future__ import annotations

import pathlib

import pytest
import sqlalchemy as sa
from alembic import command

from scheduler_service.store import migrate, schema
from scheduler_service.store.connection import Store, Writer
from scheduler_service.store.records import decision_list, decisions
from scheduler_service.store.records.decision_list import DecisionFilter
from scheduler_service.store.records.decisions import Decision
from tests.support.databases import DATABASES

pytestmark = pytest.mark.db
# Of the tables of the first release, a file for each database.
FOLDER = pathlib.Path(__file__).parent


@pytest.mark.parametrize('kind', DATABASES)
def test_empty_database_gets_the_tables_of_the_models_when_synced(
    kind, make_url
):
    store = Store.connect(make_url(kind, empty=True))
    for _ in range(2):
        assert migrate.sync(store) == migrate.head()
        assert migrate.differences(store) == []
    store.dispose()


@pytest.mark.parametrize('kind', DATABASES)
def test_differences_are_sentences_and_leave_foreign_tables_out(
    kind, make_store
):
    store = make_store(kind, own=True)
    with store.engine.begin() as conn:
        conn.execute(sa.text('CREATE TABLE foreign_one (a INTEGER)'))
        conn.execute(sa.text('ALTER TABLE zones ADD COLUMN extra INTEGER'))
        conn.execute(sa.text('DROP TABLE configurations'))
    assert migrate.differences(store) == [
        'the column extra of zones is not of this release',
        'the table configurations is missing',
    ]


def described(conn: sa.Connection) -> str:
    """Return the tables of a database in lines that can be compared."""
    found = sa.inspect(conn)
    lines = []
    for table in sorted(set(found.get_table_names()) - {'alembic_version'}):
        lines.append(table)
        for column in found.get_columns(table):
            kind = column['type'].compile(conn.dialect)
            # MariaDB 11 gives the same collation a name of MySQL's.
            kind = kind.replace('utf8mb4_0900_bin', 'utf8mb4_nopad_bin')
            empty = 'NULL' if column['nullable'] else 'NOT NULL'
            default = column['default']
            lines.append(f'    {column["name"]}: {kind} {empty} {default}')
        keys = found.get_pk_constraint(table)['constrained_columns']
        lines.append(f'    primary key {keys}')
        indexes = [
            f'    index {one["column_names"]}, unique: {bool(one["unique"])}'
            for one in found.get_indexes(table)
        ] + [
            f'    unique {one["column_names"]}'
            for one in found.get_unique_constraints(table)
        ]
        lines += sorted(indexes)
    return '\n'.join([*lines, ''])


@pytest.mark.parametrize('kind', DATABASES)
def test_first_migration_makes_the_tables_of_the_first_release(kind, make_url):
    """What follows the first release is a migration of its own."""
    store = Store.connect(make_url(kind, empty=True))
    with store.engine.begin() as conn:
        command.upgrade(migrate._config(conn), '0001')
        recorded = FOLDER / f'first_release_{kind}.txt'
        assert described(conn) == recorded.read_text()
    store.dispose()


@pytest.mark.parametrize('kind', DATABASES)
def test_decisions_of_a_user_are_found_beside_those_of_the_first_release(
    kind, make_url
):
    """Whose daemons store decisions after the migration, too."""
    store = Store.connect(make_url(kind, empty=True))
    with store.engine.begin() as conn:
        command.upgrade(migrate._config(conn), '0001')
    earlier = {'request_id': 'a', 'kind': 'k', 'outcome': 'chosen',
               'document': '{"user_id":"u"}'}  # fmt: skip

    def write_earlier(writer: Writer) -> None:
        writer.conn.execute(sa.insert(schema.decisions), earlier)

    store.write(write_earlier)
    assert migrate.sync(store) == migrate.head()
    assert '0001' in migrate.compatible_versions()
    store.write(write_earlier)
    made = Decision('b', 'k', 'chosen', {'user_id': 'u'})
    store.write(lambda writer: decisions.record(writer, [made]))
    with store.reading() as conn:
        found = decision_list.search(conn, DecisionFilter())
        of_user = decision_list.search(conn, DecisionFilter(user='u'))
        shown = decisions.show(conn, 'a')
    users = [(each.request_id, each.user_id) for each in found]
    assert users == [('b', 'u'), ('a', None), ('a', None)]
    assert [each.request_id for each in of_user] == ['b']
    assert [each['user_id'] for each in shown] == ['u', 'u']
    store.dispose()


# PostgreSQL rolls a migration back that was cut off.
@pytest.mark.parametrize('kind', ['sqlite', 'mariadb'])
def test_verdicts_of_a_shadow_are_added_where_that_was_cut_off(kind, make_url):
    store = Store.connect(make_url(kind, empty=True))
    migrate.sync(store)
    with store.engine.begin() as conn:
        conn.execute(sa.text("UPDATE alembic_version SET version_num='0002'"))
    assert migrate.sync(store) == migrate.head()
    assert migrate.differences(store) == []
    store.dispose()


# PostgreSQL rolls a migration back that was cut off.
@pytest.mark.parametrize('kind', ['sqlite', 'mariadb'])
def test_users_of_decisions_are_added_where_that_was_cut_off(kind, make_url):
    store = Store.connect(make_url(kind, empty=True))
    with store.engine.begin() as conn:
        command.upgrade(migrate._config(conn), '0001')
        statement = 'ALTER TABLE decisions ADD COLUMN user_id VARCHAR(255)'
        conn.execute(sa.text(statement))
    assert migrate.sync(store) == migrate.head()
    assert migrate.differences(store) == []
    store.dispose()
