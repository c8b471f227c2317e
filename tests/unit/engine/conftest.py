"""Inventories for tests of the engine's parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_service.model import documents
from scheduler_service.store.connection import Store
from scheduler_service.store.writing import inventory_import

ImportInventory = Callable[[dict[str, Any]], None]


@pytest.fixture
def import_inventory(store: Store) -> ImportInventory:
    """Give a function that imports an inventory document into ``store``."""

    def run(document: dict[str, Any]) -> None:
        parsed = documents.inventory(document)
        store.write(
            lambda writer: inventory_import.Importer(writer).run(parsed)
        )

    return run
