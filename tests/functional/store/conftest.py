"""A store on each kind of database."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service.store.connection import Store
from tests.support.databases import DATABASES


@pytest.fixture(params=DATABASES)
def store(request: pytest.FixtureRequest, make_store: Any) -> Store:
    """A store with its tables and nothing in them, on each database."""
    found: Store = make_store(request.param)
    return found
