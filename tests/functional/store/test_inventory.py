"""Inventories that are imported and exported, on every database."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.model import documents
from scheduler_service.store.reading import inventory_export
from tests.support.stores import (
    FULL_INVENTORY,
    import_inventory,
    load_snapshot,
    new_claim,
    used_amounts,
    write_claims,
)

pytestmark = pytest.mark.db


def test_export_is_the_document_that_was_imported(store):
    import_inventory(store, FULL_INVENTORY)
    with store.reading() as conn:
        exported = documents.dump(inventory_export.export(conn))
    again = documents.inventory(documents.read(exported))
    first, second = again.hosts
    assert (first.host, second.host) == ('compute-1', 'Compute-1')
    assert first.memory_mb_used == 1024
    assert first.traits == ['HW_A', 'HW_B']
    assert first.resources['CUSTOM_FPGA'].used == 1
    assert first.metrics[0].value == 0.5
    assert first.num_instances == 3
    assert second.disk_available_least == 3
    assert again.pools[0].attributes == {'pool_level': 'gold'}
    assert again.server_groups[0].max_server_per_host == 2
    assert again.instances[0].flavor == {'flavorid': '1'}


def test_import_changes_nothing_when_repeated(store):
    assert import_inventory(store, FULL_INVENTORY).added['hosts'] == 2
    before = load_snapshot(store).revision
    report = import_inventory(store, FULL_INVENTORY)
    assert (report.added.total(), report.changed.total()) == (0, 0)
    assert load_snapshot(store).revision == before


def test_replace_removes_what_the_document_does_not_name(store):
    import_inventory(store, FULL_INVENTORY)
    report = import_inventory(
        store, {'hosts': FULL_INVENTORY['hosts'][:1]}, replace=True
    )
    assert report.removed == {
        'hosts': 1, 'pools': 1, 'aggregates': 1, 'instances': 1,
        'server_groups': 1,
    }  # fmt: skip
    assert len(load_snapshot(store).hosts) == 1


def test_replace_is_refused_when_a_host_to_remove_holds_claims(store):
    import_inventory(store, FULL_INVENTORY)
    write_claims(store, new_claim(load_snapshot(store), 512))
    with pytest.raises(errors.Conflict, match='compute-1 still holds'):
        import_inventory(store, {}, replace=True)
    assert len(load_snapshot(store).hosts) == 2


def test_claims_stay_held_when_their_host_is_imported_again(store):
    import_inventory(store, FULL_INVENTORY)
    write_claims(store, new_claim(load_snapshot(store), 512))
    assert used_amounts(store)['MEMORY_MB'] == 1536
    changed = dict(FULL_INVENTORY['hosts'][0], memory_mb_used=2048)
    import_inventory(store, {'hosts': [changed]})
    assert used_amounts(store)['MEMORY_MB'] == 2560


def test_a_claim_counts_once_when_exported_and_imported(store):
    import_inventory(store, FULL_INVENTORY)
    write_claims(store, new_claim(load_snapshot(store), 512))
    with store.reading() as conn:
        exported = inventory_export.export(conn)
    import_inventory(store, documents.read(documents.dump(exported)))
    assert used_amounts(store)['MEMORY_MB'] == 1536
