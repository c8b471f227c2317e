"""What is read of a cell, written into our store."""

import uuid
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service.compute.follower.applying import Applier
from scheduler_service.compute.follower.cells import CellChanges
from scheduler_service.compute.follower.databases import Cell
from scheduler_service.model import Instance
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import loading
from tests.support.waiting import wait_until

CELL = Cell(1, str(uuid.uuid4()), 'cell1', 'sqlite://')


@pytest.mark.db
def test_a_first_load_looks_rows_up(make_store):
    """Else each part of it would take longer than the one before."""
    store = make_store('postgresql', own=True)
    instances = [
        Instance(uuid=str(uuid.uuid4()), host=f'c{number % 10}')
        for number in range(2500)
    ]
    changes = CellChanges(CELL, None, [], instances, [], [])
    assert Applier(store, lambda: None).apply(changes) == [
        f'c{number}' for number in range(10)
    ]
    watching = Store.connect(store.engine.url.render_as_string(False))
    # A session reports what it did soon after it ended.
    store.dispose()
    wait_until(lambda: statistics(watching).n_tup_ins == len(instances))
    # The second part would read the 1,000 rows of the first one.
    assert statistics(watching).seq_tup_read < 1000
    watching.dispose()


def test_an_image_is_stored_once_it_is_known(make_store):
    """Images were not read before, or a cast did not have it."""
    store = make_store('sqlite')
    applier = Applier(store, lambda: None)
    vm = str(uuid.uuid4())
    image = {'properties': {'hw_disk_bus': 'virtio'}}
    for known in ({}, image, {}):
        read = Instance(uuid=vm, host='c1', image_meta=known)
        applier.apply(CellChanges(CELL, None, [], [read], [], []))
    with store.reading() as conn:
        ((found, _),) = loading.instance_documents(conn)
    assert found.image_meta == image


def statistics(store: Store) -> Any:
    """Return what PostgreSQL counted of the table of instances."""
    query = "SELECT * FROM pg_stat_user_tables WHERE relname = 'instances'"
    with store.reading() as conn:
        return conn.execute(sa.text(query)).one()
