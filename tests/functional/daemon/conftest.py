"""A topic for daemon processes."""

import uuid

import pytest


@pytest.fixture
def topic() -> str:
    return f't{uuid.uuid4().hex[:8]}'
