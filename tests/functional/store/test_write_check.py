"""What is written to see whether claims can be: it fails as they do."""

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from scheduler_service.store.workers.store_monitor import check_write
from tests.support.databases import DATABASES
from tests.support.stores import import_two_hosts, new_claim, write_claims


def contents(store):
    """Return all rows of all tables, by table."""
    with store.reading() as conn:
        return {
            table.name: sorted(map(str, conn.execute(sa.select(table))))
            for table in schema.metadata.tables.values()
        }


@pytest.mark.db
def test_nothing_is_left_when_it_was_checked_whether_writing_works(store):
    import_two_hosts(store)
    before = contents(store)
    check_write(store)
    check_write(store)
    assert contents(store) == before


def claim_often(store, snapshot, size):
    for _ in range(2000 // size):
        batch = [
            new_claim(snapshot, 0, amounts={'VCPU': 0}) for _ in range(size)
        ]
        write_claims(store, *batch)


def claim_until_full(store, snapshot, text=None):
    """Claim so often that no pages have room for more, first in batches."""
    for size in (100, 1):
        with pytest.raises(errors.StoreUnavailable, match=text):
            claim_often(store, snapshot, size)


@pytest.mark.db
@pytest.mark.parametrize('kind', DATABASES)
def test_writing_is_said_to_fail_when_claims_fail(kind, database_on_disk):
    disk, url = database_on_disk(kind)
    store = Store.connect(url)
    snapshot = import_two_hosts(store)
    disk.fill()
    # SQLite may call it an error of the disk.
    claim_until_full(store, snapshot)
    # Again and again, whatever the last one left in pages that exist.
    for _ in range(5):
        with pytest.raises(errors.StoreUnavailable):
            check_write(store)
    disk.free()
    check_write(store)
    write_claims(store, new_claim(snapshot, 1))
    store.dispose()


def test_writing_is_said_to_fail_when_a_file_may_not_grow(make_store):
    store = make_store(own=True)
    snapshot = import_two_hosts(store)
    limit = 0

    @sa.event.listens_for(store.engine, 'checkout')
    def limit_pages(raw, *about):
        raw.execute(f'PRAGMA max_page_count = {limit or 1 << 30}')

    with store.reading() as conn:
        pages = conn.exec_driver_sql('PRAGMA page_count').scalar_one()
    limit = pages
    claim_until_full(store, snapshot, 'is full')
    with pytest.raises(errors.StoreUnavailable, match='is full'):
        check_write(store)
    limit = 0
    check_write(store)
