"""Migrations lead to the tables of the models."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from scheduler_service.store import migrate
from scheduler_service.store.connection import Store
from tests.support.databases import DATABASES

pytestmark = pytest.mark.db


@pytest.mark.parametrize('kind', DATABASES)
def test_empty_database_gets_the_tables_of_the_models_when_synced(
    kind, make_url
):
    store = Store.connect(make_url(kind, empty=True))
    for _ in range(2):
        assert migrate.sync(store) == migrate.head()
        assert migrate.differences(store) == []
    store.dispose()


@pytest.mark.parametrize('kind', DATABASES)
def test_differences_are_sentences_and_leave_foreign_tables_out(
    kind, make_store
):
    store = make_store(kind, own=True)
    with store.engine.begin() as conn:
        conn.execute(sa.text('CREATE TABLE foreign_one (a INTEGER)'))
        conn.execute(sa.text('ALTER TABLE zones ADD COLUMN extra INTEGER'))
        conn.execute(sa.text('DROP TABLE configurations'))
    assert migrate.differences(store) == [
        'the column extra of zones is not of this release',
        'the table configurations is missing',
    ]
