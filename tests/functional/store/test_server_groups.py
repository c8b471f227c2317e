"""Server groups while their members are claimed, moved and released."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest

from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.store import claims
from scheduler_service.store.claims import lifecycle
from scheduler_service.store.connection import Store
from tests.support.databases import listens
from tests.support.stores import (
    DEFAULT_RATIOS,
    STRICT,
    claim_on,
    import_inventory,
    load_snapshot,
    write_claims,
)

pytestmark = pytest.mark.db

GROUP = str(uuid.uuid4())
# SQLite has one writer at a time.
SHARED = pytest.mark.parametrize('kind', ['postgresql', 'mariadb'])
# A claim that another daemon may have made has all claims of its batch made
# statement by statement.
FORMS = {'in one round trip': False, 'statement by statement': True}


def import_cloud(store: Store, *groups: dict[str, Any]) -> Snapshot:
    """Import three hosts of 4,096 MB, and server groups."""
    import_inventory(
        store,
        {
            'hosts': [
                {'host': f'compute-{n}', 'vcpus': 8, 'memory_mb': 4096,
                 'local_gb': 100, 'ram_allocation_ratio': 1.0}
                for n in (1, 2, 3)
            ],
            'server_groups': list(groups or ({'uuid': GROUP},)),
        },
    )  # fmt: skip
    return load_snapshot(store)


def write(store: Store, *wanted: claims.Claim) -> None:
    write_claims(store, *wanted, policies=STRICT)


def members(store: Store, group: str = GROUP) -> list[str]:
    return load_snapshot(store).hosts.groups[group].members


def again(
    snapshot: Snapshot, released: claims.Claim, **how: Any
) -> claims.Claim:
    """Return a claim of the same member on the second host."""
    consumer = released.consumer
    return claim_on(snapshot, 1, consumer=consumer, group=GROUP, **how)


def assert_is_member(store: Store, snapshot: Snapshot, uuid: str) -> None:
    """Check a member on the second host by where others may be claimed."""
    assert members(store) == [uuid]
    with pytest.raises(claims.ClaimLost):
        write(store, claim_on(snapshot, 1, group=GROUP))
    write(store, claim_on(snapshot, 0, group=GROUP))


@SHARED
@pytest.mark.parametrize('redelivered', FORMS.values(), ids=FORMS)
def test_member_that_is_claimed_before_its_release_ends_stays_one(
    make_store, kind, redelivered
):
    """The claim sees the membership that the release is about to delete."""
    store = make_store(kind)
    snapshot = import_cloud(store)
    first = claim_on(snapshot, 0, group=GROUP)
    write(store, first)
    claim = again(snapshot, first, redelivered=redelivered)
    claiming = threading.Thread(target=write, args=(store, claim))
    releasing = threading.get_ident()

    @listens(store, 'after_cursor_execute')
    def look(conn, cursor, statement, *_):
        mine = threading.get_ident() == releasing
        if mine and 'DELETE FROM instances' in statement:
            claiming.start()
            claiming.join(0.3)
            assert claiming.is_alive()

    store.write(lambda w: lifecycle.release(w, [first.consumer]))
    claiming.join(20)
    assert not claiming.is_alive()
    assert_is_member(store, snapshot, first.consumer)


@SHARED
def test_member_that_is_released_before_it_is_inserted_again_stays_one(
    make_store, kind
):
    store = make_store(kind)
    snapshot = import_cloud(store)
    first = claim_on(snapshot, 0, group=GROUP)
    write(store, first)
    claiming = threading.get_ident()

    def release() -> None:
        store.write(lambda w: lifecycle.release(w, [first.consumer]))

    @listens(store, 'before_cursor_execute')
    def look(conn, cursor, statement, *_):
        mine = threading.get_ident() == claiming
        if mine and 'INSERT INTO instances' in statement:
            releasing = threading.Thread(target=release)
            releasing.start()
            releasing.join(20)

    batch = claims.ClaimBatch(
        store, [again(snapshot, first)], DEFAULT_RATIOS, STRICT
    )
    store.write(batch.make)
    assert_is_member(store, snapshot, first.consumer)
