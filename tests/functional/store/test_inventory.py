"""Inventories that are imported and exported, on every database."""

import uuid
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.model import ServerGroup, documents
from scheduler_service.store import claims, schema
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import loading
from scheduler_service.store.writing import (
    inventory_import,
    server_groups,
)
from tests.support.stores import (
    FULL_INVENTORY,
    HOSTS,
    STRICT,
    claim_on,
    import_inventory,
    load_snapshot,
    move_of,
    new_claim,
    used_amounts,
    write_claims,
)

pytestmark = pytest.mark.db

GROUP = 'aaaaaaaa-0000-4000-8000-000000000002'
HOSTS_AND_GROUP = {
    'hosts': [
        {'host': name, 'vcpus': 8, 'memory_mb': 4096, 'local_gb': 100,
         'ram_allocation_ratio': 1.0}
        for name in HOSTS
    ],
    'server_groups': [{'uuid': GROUP, 'policy': 'anti-affinity'}],
}  # fmt: skip


def test_export_is_the_document_that_was_imported(store):
    import_inventory(store, FULL_INVENTORY)
    with store.reading() as conn:
        exported = documents.dump(loading.export(conn))
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
        exported = loading.export(conn)
    import_inventory(store, documents.read(documents.dump(exported)))
    assert used_amounts(store)['MEMORY_MB'] == 1536


def claim_apart(store: Store, *rows: int) -> list[str]:
    """Claim for a member of GROUP on each of these hosts; return them."""
    snapshot = load_snapshot(store)
    members = [claim_on(snapshot, row, group=GROUP) for row in rows]
    write_claims(store, *members, policies=STRICT)
    return [member.consumer for member in members]


def stored_group(store: Store) -> ServerGroup:
    with store.reading() as conn:
        return loading.groups(conn)[GROUP]


def with_group(**changes: Any) -> dict[str, Any]:
    """Return HOSTS_AND_GROUP with another group."""
    group = HOSTS_AND_GROUP['server_groups'][0]
    return {**HOSTS_AND_GROUP, 'server_groups': [{**group, **changes}]}


@pytest.mark.parametrize('replace', [False, True])
def test_members_that_hold_claims_stay_when_a_group_is_imported_again(
    store, replace
):
    import_inventory(
        store, {**HOSTS_AND_GROUP, 'hosts': HOSTS_AND_GROUP['hosts'][:2]}
    )
    members = claim_apart(store, 0, 1)
    report = import_inventory(store, HOSTS_AND_GROUP, replace=replace)
    assert report.added == {
        'hosts': 1, 'pools': 0, 'aggregates': 0, 'instances': 0,
        'server_groups': 0,
    }  # fmt: skip
    assert report.changed.total() == report.removed.total() == 0
    assert stored_group(store).members == sorted(members)
    with pytest.raises(claims.ClaimLost):
        claim_apart(store, 1)
    before = load_snapshot(store).revision
    import_inventory(store, HOSTS_AND_GROUP, replace=replace)
    assert load_snapshot(store).revision == before
    claim_apart(store, 2)


@pytest.mark.parametrize('replace', [False, True])
def test_members_without_claims_are_those_of_the_document(store, replace):
    old, named = str(uuid.uuid4()), str(uuid.uuid4())
    import_inventory(store, with_group(members=[old]))
    (member,) = claim_apart(store, 0)
    wanted = {'name': 'web', 'project_id': 'p', 'members': [named],
              'rules': {'max_server_per_host': 2}}  # fmt: skip
    report = import_inventory(store, with_group(**wanted), replace=replace)
    assert report.changed['server_groups'] == 1
    group = stored_group(store)
    assert group.members == sorted([member, named])
    assert (group.name, group.project_id) == ('web', 'p')
    assert group.rules == {'max_server_per_host': 2}
    again = import_inventory(store, with_group(**wanted), replace=replace)
    assert again.changed.total() == 0


def test_a_member_that_moves_stays_when_its_group_is_imported_again(store):
    member = str(uuid.uuid4())
    reported = [{'uuid': member, 'host': HOSTS[0]}]
    import_inventory(store, {**HOSTS_AND_GROUP, 'instances': reported})
    move = move_of(load_snapshot(store), member, group=GROUP)
    write_claims(store, move, policies=STRICT)
    report = import_inventory(store, HOSTS_AND_GROUP)
    assert report.changed.total() == 0
    assert stored_group(store).members == [member]


def test_a_member_that_joins_during_an_import_stays(store):
    """It read the group before the member was there."""
    import_inventory(store, HOSTS_AND_GROUP)
    before = stored_group(store)
    members = claim_apart(store, 0, 1)
    seen = msgspec.structs.replace(before, members=members[:1])
    store.write(lambda w: server_groups.change(w, [(seen, before)]))
    assert stored_group(store).members == sorted(members)


def test_a_group_that_is_removed_during_an_import_gets_no_members(store):
    import_inventory(store, HOSTS_AND_GROUP)
    before = stored_group(store)
    after = msgspec.structs.replace(before, members=[str(uuid.uuid4())])
    store.write(lambda w: server_groups.remove(w, [GROUP]))
    store.write(lambda w: server_groups.change(w, [(before, after)]))
    with store.reading() as conn:
        assert not conn.execute(sa.select(schema.server_group_members)).all()


def test_a_comparison_keeps_members_that_hold_claims(store):
    import_inventory(store, HOSTS_AND_GROUP)
    claim_apart(store, 0)
    wanted = documents.inventory(HOSTS_AND_GROUP)
    with store.reading() as conn:
        found, kept = inventory_import.differences(conn, wanted, replace=True)
    assert (found, kept) == ([], [])


def test_replace_keeps_groups_that_have_instances_as_members(store):
    import_inventory(store, HOSTS_AND_GROUP)
    claim_apart(store, 0)
    before = stored_group(store)
    document = {'hosts': HOSTS_AND_GROUP['hosts']}
    with store.reading() as conn:
        found, kept = inventory_import.differences(
            conn, documents.inventory(document), replace=True
        )
    assert (found, kept) == ([], [before])
    report = import_inventory(store, document, replace=True)
    assert report.kept == [before]
    assert report.removed.total() == report.changed.total() == 0
    assert report.same['server_groups'] == 1
    assert stored_group(store) == before
    with pytest.raises(claims.ClaimLost):
        claim_apart(store, 0)


def test_replace_keeps_the_group_of_an_instance_that_the_document_lists(store):
    member = str(uuid.uuid4())
    listed = {'instances': [{'uuid': member, 'host': HOSTS[0]}]}
    import_inventory(store, {**with_group(members=[member]), **listed})
    document = {'hosts': HOSTS_AND_GROUP['hosts'], **listed}
    assert import_inventory(store, document, replace=True).kept
    assert stored_group(store).members == [member]


def test_replace_keeps_the_group_of_an_instance_that_moves(store):
    member = str(uuid.uuid4())
    reported = [{'uuid': member, 'host': HOSTS[0]}]
    import_inventory(store, {**HOSTS_AND_GROUP, 'instances': reported})
    move = move_of(load_snapshot(store), member, group=GROUP)
    write_claims(store, move, policies=STRICT)
    document = {'hosts': HOSTS_AND_GROUP['hosts']}
    assert import_inventory(store, document, replace=True).kept
    assert stored_group(store).members == [member]


def test_replace_removes_groups_whose_members_are_no_instances(store):
    """One has no members, one a member that is unknown, one that goes."""
    here, away = str(uuid.uuid4()), str(uuid.uuid4())
    groups = [
        {'uuid': str(uuid.uuid4()), 'policy': 'affinity', 'members': members}
        for members in ([], [away], [here])
    ]
    import_inventory(store, {
        'hosts': HOSTS_AND_GROUP['hosts'],
        'instances': [{'uuid': here, 'host': HOSTS[0]}],
        'server_groups': groups,
    })  # fmt: skip
    document = {'hosts': HOSTS_AND_GROUP['hosts']}
    with store.reading() as conn:
        found, kept = inventory_import.differences(
            conn, documents.inventory(document), replace=True
        )
    assert [one.kind for one in found] == ['instances'] + 3 * ['server_groups']
    report = import_inventory(store, document, replace=True)
    assert report.kept == kept == []
    assert report.removed['server_groups'] == 3


# SQLite has one writer at a time.
@pytest.mark.parametrize('store', ['postgresql', 'mariadb'], indirect=True)
def test_replace_keeps_a_group_that_is_joined_during_the_import(
    store, monkeypatch
):
    import_inventory(store, HOSTS_AND_GROUP)
    lock = server_groups.lock

    def join_and_lock(conn: Any, uuids: Iterable[str]) -> dict[str, Any]:
        if uuids:
            claim_apart(store, 0)
        return lock(conn, uuids)

    monkeypatch.setattr(server_groups, 'lock', join_and_lock)
    hosts = {'hosts': HOSTS_AND_GROUP['hosts']}
    report = import_inventory(store, hosts, replace=True)
    assert [one.uuid for one in report.kept] == [GROUP]
    assert len(stored_group(store).members) == 1
