"""A topic for daemon processes."""

from __future__ import annotations

import uuid

import pytest


@pytest.fixture
def topic() -> str:
    return f't{uuid.uuid4().hex[:8]}'
