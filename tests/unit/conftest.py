"""A store in a file, and what is in it: no server needed."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_service.model import documents
from scheduler_service.store.connection import Store
from scheduler_service.store.writing import inventory_import


@pytest.fixture
def store(make_store: Callable[[str], Store]) -> Store:
    """A store with its tables and nothing in them."""
    return make_store('sqlite')


@pytest.fixture
def import_inventory(store: Store) -> Callable[[dict[str, Any]], None]:
    """Give a function that imports an inventory document into ``store``."""

    def run(document: dict[str, Any]) -> None:
        parsed = documents.inventory(document)
        store.write(
            lambda writer: inventory_import.Importer(writer).run(parsed)
        )

    return run
