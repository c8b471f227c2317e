"""Tables that are newer, older or damaged."""

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.cmd import manage
from scheduler_service.factory import build
from scheduler_service.store import migrate, schema, version
from tests.support.databases import DATABASES
from tests.support.next_release import VERSION, in_process
from tests.support.services import new_conf
from tests.support.stores import import_two_hosts, load_snapshot

pytestmark = pytest.mark.db
NEWER = '0999'
BEFORE = schema.VERSION


@pytest.fixture
def store(make_store, request):
    """A store in a file, or on another database as a test's parameter."""
    return make_store(getattr(request, 'param', 'sqlite'), own=True)


on_each_database = pytest.mark.parametrize('store', DATABASES, indirect=True)


@pytest.fixture
def next_release(monkeypatch, tmp_path):
    """Let this process be the next release."""
    with in_process(monkeypatch, tmp_path / 'migrations'):
        yield


def execute(store, *statements):
    with store.engine.begin() as conn:
        for statement in statements:
            conn.execute(sa.text(statement))


def set_version(store, wanted, *compatible):
    """Let another release have upgraded the tables."""
    execute(store, f"UPDATE alembic_version SET version_num = '{wanted}'")
    table = schema.compatible_versions
    with store.engine.begin() as conn:
        conn.execute(sa.delete(table))
        for one in (wanted, *compatible):
            conn.execute(table.insert(), {'version': one})


def commands(store, tmp_path, capsys):
    """Return the status and the only line of each command."""
    config = tmp_path / 'a.conf'
    url = store.engine.url.render_as_string(hide_password=False)
    config.write_text(f'[database]\nconnection = {url}\n')
    found = []
    for words in (['db', 'check'], ['db', 'sync'], ['host', 'list']):
        status = manage.main(['--config-file', str(config), *words])
        printed = capsys.readouterr()
        found.append((status, (printed.out + printed.err).rstrip('\n')))
    return found


def start(store):
    """Start the engine of a daemon, and stop it again."""
    url = store.engine.url.render_as_string(hide_password=False)
    scheduler = build(new_conf(database__connection=url), store)
    try:
        return scheduler.start()
    finally:
        scheduler.stop()


def newer(store):
    set_version(store, NEWER)
    return f'The tables are at version {NEWER}, newer than {schema.VERSION}'


def unknown(store):
    set_version(store, 'x')
    return "The tables have the unknown version 'x'"


def without_version(store):
    execute(store, 'DELETE FROM alembic_version')
    return 'The tables should have one version in alembic_version'


def without_versions(store):
    execute(store, 'DROP TABLE alembic_version')
    return 'The tables should have one version in alembic_version'


def with_two_versions(store):
    execute(store, "INSERT INTO alembic_version VALUES ('0000')")
    return f'and have 0000, {schema.VERSION}'


@pytest.mark.parametrize(
    'fault',
    [unknown, without_version, without_versions, with_two_versions],
)
def test_nothing_starts_or_is_changed_when_the_version_cannot_be_used(
    store, tmp_path, capsys, fault
):
    text = fault(store)
    with pytest.raises(errors.SchemaMismatch, match=text):
        start(store)
    assert_refused(commands(store, tmp_path, capsys), text)


def assert_refused(found, text):
    for status, line in found:
        assert status == 1
        assert line.startswith('SchemaMismatch: ')
        assert text in line
        assert '\n' not in line


@on_each_database
def test_nothing_starts_when_the_tables_are_newer(store, tmp_path, capsys):
    text = newer(store)
    with pytest.raises(errors.SchemaMismatch, match=text):
        start(store)
    assert_refused(commands(store, tmp_path, capsys), text)


@on_each_database
def test_a_newer_version_is_used_when_it_is_declared_safe(
    store, tmp_path, capsys
):
    set_version(store, NEWER, schema.VERSION)
    execute(store, 'ALTER TABLE hosts ADD COLUMN colour VARCHAR(8)')
    assert start(store)
    checked, synced, _ = commands(store, tmp_path, capsys)
    assert checked == synced
    assert checked == (
        0,
        f'The tables are at {NEWER}, newer than {schema.VERSION} of this '
        'release, which can use them.',
    )


def test_an_older_version_is_upgraded_by_db_sync(
    store, next_release, tmp_path, capsys
):
    with pytest.raises(errors.SchemaMismatch, match='db sync'):
        start(store)
    checked, synced, listed = commands(store, tmp_path, capsys)
    assert checked == (
        1,
        f'SchemaMismatch: The tables are at version {BEFORE}, this release '
        f'needs the newer {VERSION}: run "scheduler-manage db sync"',
    )
    assert synced == (
        0,
        f'The tables are at {VERSION}, as this release needs.',
    )
    assert listed[0] == 0
    assert start(store)


# PostgreSQL rolls a migration back that was cut off.
@pytest.mark.parametrize('store', ['sqlite', 'mariadb'], indirect=True)
def test_a_migration_that_was_cut_off_is_completed(store, next_release):
    execute(store, 'ALTER TABLE hosts ADD COLUMN colour VARCHAR(8)')
    assert migrate.sync(store) == VERSION
    assert start(store)


@pytest.mark.parametrize(
    ('statement', 'text'),
    [
        ('DROP TABLE moves', 'there is no table moves'),
        ('DROP TABLE counters', 'there is no table counters'),
        ('ALTER TABLE hosts DROP COLUMN state',
         'the table hosts has no column state'),
    ],
)  # fmt: skip
def test_damaged_tables_are_named_by_the_start_and_both_commands(
    store, tmp_path, capsys, statement, text
):
    execute(store, statement)
    with pytest.raises(errors.SchemaMismatch, match=text):
        start(store)
    checked, synced, listed = commands(store, tmp_path, capsys)
    assert checked == (1, text)
    assert synced[0] == 1
    assert '\n' not in synced[1]
    assert text in synced[1] or 'counters' in synced[1]
    assert text in listed[1]


@pytest.mark.parametrize(
    'statement',
    [
        'DELETE FROM counters',
        "UPDATE counters SET value = 0 WHERE name = 'revision'",
    ],
)
def test_counters_are_corrected_by_db_sync(store, tmp_path, capsys, statement):
    import_two_hosts(store)
    before = load_snapshot(store)
    execute(store, statement)
    with pytest.raises(errors.SchemaMismatch, match='counter'):
        start(store)
    checked, synced, _ = commands(store, tmp_path, capsys)
    assert checked[0] == 1
    assert 'counter revision' in checked[1]
    assert synced[0] == 0
    assert load_snapshot(store).revision == before.revision


def test_the_version_of_the_release_is_that_of_the_last_migration():
    assert migrate.head() == schema.VERSION


@on_each_database
@pytest.mark.parametrize('safe', [True, False])
def test_tables_are_used_after_a_migration_that_is_safe(
    store, monkeypatch, tmp_path, safe
):
    with in_process(monkeypatch, tmp_path / 'migrations', safe):
        migrate.sync(store)
    if safe:
        assert start(store)
        with store.reading() as conn:
            assert version.check(conn) == VERSION
    else:
        with pytest.raises(errors.SchemaMismatch, match='newer than'):
            start(store)
