"""What is read of a cell, written into our store."""

from __future__ import annotations

import uuid

import pytest
import sqlalchemy as sa

from scheduler_service.mirror.applying import Applier
from scheduler_service.mirror.cells import CellChanges
from scheduler_service.mirror.queries import Cell
from scheduler_service.model import Instance

CELL = Cell(1, str(uuid.uuid4()), 'cell1', 'sqlite://')


@pytest.mark.db
def test_postgresql_knows_how_large_a_first_load_was(make_store):
    """Else each part of it would take longer than the one before."""
    store = make_store('postgresql')
    instances = [
        Instance(uuid=str(uuid.uuid4()), host=f'c{number % 10}')
        for number in range(1200)
    ]
    changes = CellChanges(CELL, None, [], instances, [], [])
    assert Applier(store, lambda: None).apply(changes) == [
        f'c{number}' for number in range(10)
    ]
    query = "SELECT reltuples FROM pg_class WHERE relname = 'instances'"
    with store.reading() as conn:
        assert conn.execute(sa.text(query)).scalar_one() >= 1000
