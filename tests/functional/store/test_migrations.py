"""Migrations lead to the tables of the models."""

from __future__ import annotations

import pytest

from scheduler_service.store import migrate

pytestmark = pytest.mark.db


def test_tables_match_the_models_when_synced_again(store):
    assert migrate.sync(store) == migrate.head()
    assert migrate.differences(store) == []
