"""A store on each kind of database."""

from typing import Any

import pytest

from scheduler_service.store.connection import Store
from tests.support.databases import DATABASES
from tests.support.stores import (
    claim_on,
    import_two_hosts,
    move_of,
    write_claims,
)


@pytest.fixture(params=DATABASES)
def store(request: pytest.FixtureRequest, make_store: Any) -> Store:
    """A store with its tables and nothing in them, on each database."""
    found: Store = make_store(request.param)
    return found


@pytest.fixture
def snapshot(store):
    """Two hosts of 4,096 MB, as loaded."""
    return import_two_hosts(store)


@pytest.fixture
def claim(store, snapshot):
    """A claim of 1,024 MB on the first host, of a message."""
    made = claim_on(snapshot, 0, key='m/0')
    write_claims(store, made)
    return made


@pytest.fixture
def moving(store, snapshot, claim):
    """A move of the claim to the second host, of another message."""
    made = move_of(snapshot, claim.consumer, key='n/0')
    write_claims(store, made)
    return made
