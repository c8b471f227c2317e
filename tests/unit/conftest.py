"""A store in a file: no server needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler_service.store.connection import Store


@pytest.fixture
def store(make_store: Callable[[str], Store]) -> Store:
    """A store with its tables and nothing in them."""
    return make_store('sqlite')
