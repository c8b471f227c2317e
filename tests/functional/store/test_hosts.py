"""Reports of hosts, written to the store."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from scheduler_service.model import documents
from scheduler_service.store.claims import claim_queries, lifecycle
from scheduler_service.store.connection import Store, Writer
from scheduler_service.store.reading import change_feed
from scheduler_service.store.writing import hosts as host_rows
from tests.support.stores import (
    FULL_INVENTORY,
    assert_same_snapshot,
    audit_findings,
    import_inventory,
    is_waiting,
    load_snapshot,
    new_claim,
    stored_host,
    used_amounts,
    write_claims,
)
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.db


def report(store: Store, **told: Any) -> dict[str, int]:
    parsed = documents.host_report({'host': 'compute-1', **told})
    return store.write(lambda w: host_rows.report(w, [parsed]))


def test_confirmed_claim_counts_once_when_its_host_reports_use(store):
    import_inventory(store, FULL_INVENTORY)
    one = new_claim(load_snapshot(store), 512)
    write_claims(store, one)
    assert used_amounts(store)['MEMORY_MB'] == 1536
    # Not there yet: what the host uses does not count it.
    report(store, memory_mb_used=1024)
    assert used_amounts(store)['MEMORY_MB'] == 1536
    store.write(lambda w: lifecycle.confirm(w, {one.consumer: 'compute-1'}))
    report(store, memory_mb_used=1536)
    assert used_amounts(store)['MEMORY_MB'] == 1536
    report(store, memory_mb_used=2048)
    assert used_amounts(store)['MEMORY_MB'] == 2048
    store.write(lambda w: lifecycle.release(w, [one.consumer]))
    assert used_amounts(store)['MEMORY_MB'] == 1536
    assert audit_findings(store) == []


def test_claims_count_when_a_host_offers_their_class_again(store):
    import_inventory(store, FULL_INVENTORY)
    one = new_claim(load_snapshot(store), 512, amounts={'CUSTOM_FPGA': 2})
    write_claims(store, one)
    report(store, resources={})
    report(store, resources={'CUSTOM_FPGA': {'total': 4, 'used': 1}})
    assert used_amounts(store)['CUSTOM_FPGA'] == 3
    assert audit_findings(store) == []


def test_instances_are_confirmed_when_their_host_lists_them(store):
    import_inventory(store, FULL_INVENTORY)
    one = new_claim(load_snapshot(store), 512)
    write_claims(store, one)
    report(store, memory_mb_used=1536, instances=[one.consumer])
    assert used_amounts(store)['MEMORY_MB'] == 1536
    with store.reading() as conn:
        assert claim_queries.show(conn, one.consumer)['state'] == 'confirmed'


def test_revision_stays_when_a_host_reports_the_same(store):
    import_inventory(store, FULL_INVENTORY)
    told = {'memory_mb_used': 77, 'num_io_ops': 3, 'num_instances': 9}
    assert report(store, **told)['changed'] == 1
    before = load_snapshot(store).revision
    assert report(store, **told)['same'] == 1
    assert load_snapshot(store).revision == before


def test_fields_stay_when_a_report_leaves_them_out(store):
    import_inventory(store, FULL_INVENTORY)
    report(store, stats={'io': 3})
    host = load_snapshot(store).hosts
    assert host.resources['CUSTOM_FPGA'].total[0] == 4
    assert host.coded['trait_set'].at(0) == {'HW_A', 'HW_B'}


def test_host_is_added_when_it_is_unknown(store):
    import_inventory(store, FULL_INVENTORY)
    parsed = documents.host_report({'host': 'new', 'vcpus': 4})
    told = store.write(lambda w: host_rows.report(w, [parsed]))
    assert told == {'added': 1, 'changed': 0, 'same': 0}
    assert len(load_snapshot(store).hosts) == 3


def test_measured_disk_is_reduced_by_unconfirmed_claims(store):
    import_inventory(store, FULL_INVENTORY)
    write_claims(
        store, new_claim(load_snapshot(store), 1, amounts={'DISK_GB': 10})
    )
    report(store, disk_available_least=50)
    least = load_snapshot(store).hosts.numbers['disk_available_least']
    assert least[0] == 40


def test_refresh_equals_a_fresh_load_when_hosts_report(store):
    import_inventory(store, FULL_INVENTORY)
    before = load_snapshot(store)
    report(store, memory_mb_used=5, state='down', num_io_ops=2)
    report(store, metrics=[{'name': 'x', 'value': 1.0}])
    with store.reading() as conn:
        assert_same_snapshot(
            change_feed.refresh(conn, before), load_snapshot(store)
        )


def test_reports_of_other_fields_stay_when_they_come_at_the_same_time(
    make_store,
):
    store = make_store('postgresql')
    import_inventory(store, FULL_INVENTORY)
    load = documents.host_report({'host': 'compute-1', 'num_io_ops': 7})
    # With traits, all columns of the host are written.
    other = {'memory_mb_used': 2048, 'traits': ['CUSTOM_A']}

    def work(writer: Writer) -> Future[Any]:
        host_rows.report(writer, [load])
        future = thread.submit(report, store, **other)
        wait_until(lambda: is_waiting(store))
        return future

    with ThreadPoolExecutor(1) as thread:
        store.write(work).result(LIMIT_S)
    stored = stored_host(store)
    assert (stored.num_io_ops, stored.traits) == (7, ['CUSTOM_A'])
    assert used_amounts(store)['MEMORY_MB'] == 2048
