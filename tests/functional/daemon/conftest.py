"""A topic and a database for daemon processes."""

from __future__ import annotations

import uuid

import pytest

from tests.support.databases import ready_database


@pytest.fixture
def ready_sqlite(tmp_path) -> str:
    """A database file with tables and an inventory."""
    return ready_database(f'sqlite:///{tmp_path}/')


@pytest.fixture
def topic() -> str:
    return f't{uuid.uuid4().hex[:8]}'
