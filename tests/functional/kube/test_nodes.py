"""Nodes of a cluster, written into a store as hosts."""

from typing import Any

import msgspec
import pytest

from scheduler_service.kube import node_reader as nodes
from scheduler_service.kube.node_reader import NodeHost, NodeReader
from scheduler_service.kube.nodes import HostKeeper, NodeSink
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import loading
from scheduler_service.store.records.leases import LeaseLost
from scheduler_service.store.writing import hosts as host_rows
from tests.support import kube
from tests.support.databases import DATABASES
from tests.support.stores import (
    claim_on,
    import_inventory,
    load_snapshot,
    write_claims,
)
from tests.support.waiting import LIMIT_S, wait_until

ZONE = 'topology.kubernetes.io/zone'
READER = NodeReader('d', {'pool': 'metadata'}, ())


def keeper_of(store: Store, name: str) -> HostKeeper:
    """Return a keeper that writes when it is told to."""
    return HostKeeper(store, name, NodeSink(READER))


def known(*listed: Any) -> dict[str, NodeHost]:
    return {one['metadata']['name']: READER.read(one) for one in listed}


def node(name: str, zone: str = 'a', **how: Any) -> Any:
    return kube.node(name, labels={ZONE: zone}, **how)


def hosts(store: Store) -> dict[str, Any]:
    with store.reading() as conn:
        return {host.host: host for host in loading.hosts(conn).values()}


def members(store: Store) -> dict[str, list[str]]:
    with store.reading() as conn:
        return {
            aggregate.name: aggregate.hosts
            for aggregate in loading.aggregates(conn)
        }


@pytest.mark.db
@pytest.mark.parametrize('kind', DATABASES)
def test_store_follows_what_nodes_say(make_store, kind):
    store = make_store(kind)
    writer = keeper_of(store, 'one')
    assert writer.leads()
    fpga = node('n1', size={'example.com/fpga': '2'})
    writer.write(known(fpga, node('n2', 'b')))
    found = hosts(store)
    assert found['n1'].resources['CUSTOM_EXAMPLE_COM_FPGA'].total == 2
    assert members(store) == {
        'kubernetes:availability_zone=a': ['n1'],
        'kubernetes:availability_zone=b': ['n2'],
    }
    uuid = found['n1'].uuid
    writer.write(known(node('n1', 'b', ready='False')))
    found = hosts(store)
    assert [*found] == ['n1']
    assert (found['n1'].state, found['n1'].uuid) == ('down', uuid)
    assert found['n1'].resources == {}
    assert members(store) == {'kubernetes:availability_zone=b': ['n1']}


def test_nothing_is_written_when_nothing_changed(make_store):
    store = make_store()
    writer = keeper_of(store, 'one')
    wanted = known(node('n1'))
    writer.leads()
    writer.write(wanted)
    revision = load_snapshot(store).revision
    writer.write(known(node('n1')))
    assert load_snapshot(store).revision == revision
    # As after a restart.
    writer.forget()
    writer.write(wanted)
    assert load_snapshot(store).revision == revision


def test_hosts_that_are_no_nodes_are_left_as_they_are(make_store):
    store = make_store()
    import_inventory(store, {
        'hosts': [{'host': 'n1', 'traits': ['HW_A']}, {'host': 'other'}],
        'aggregates': [{'id': 1, 'name': 'rack', 'hosts': ['n1']}],
    })  # fmt: skip
    writer = keeper_of(store, 'one')
    writer.leads()
    writer.write(known(node('n1'), node('n2')))
    found = hosts(store)
    assert found['n1'].traits == ['HW_A']
    assert not nodes.is_node(found['n1'])
    assert nodes.is_node(found['n2'])
    writer.write({})
    assert sorted(hosts(store)) == ['n1', 'other']
    assert members(store) == {'rack': ['n1']}


def test_node_that_is_gone_is_down_when_it_still_holds_claims(make_store):
    store = make_store()
    writer = keeper_of(store, 'one')
    writer.leads()
    writer.write(known(node('n1')))
    write_claims(store, claim_on(load_snapshot(store), 0))
    writer.write({})
    assert hosts(store)['n1'].state == 'down'
    writer.write(known(node('n1')))
    assert hosts(store)['n1'].state == 'up'


def test_operator_decides_when_a_node_is_disabled_by_both(make_store):
    store = make_store()
    writer = keeper_of(store, 'one')
    writer.leads()
    writer.write(known(node('n1', unschedulable=True)))
    assert hosts(store)['n1'].disabled_reason.startswith('kubernetes:')
    writer.write(known(node('n1')))
    assert hosts(store)['n1'].status == 'enabled'
    store.write(lambda w: host_rows.set_status(w, 'n1', False, 'broken'))
    writer.write(known(node('n1', 'b')))
    found = hosts(store)['n1']
    assert (found.status, found.disabled_reason) == ('disabled', 'broken')


def test_one_of_two_daemons_writes(make_store):
    store = make_store()
    first, second = keeper_of(store, 'one'), keeper_of(store, 'two')
    assert first.leads()
    assert not second.leads()
    first._lease.give_up()
    assert second.leads()
    second._lease.give_up()
    assert first.leads()
    second._lease._renewed_at = 0.0
    with pytest.raises(LeaseLost):
        second.write(known(node('n1')))
    assert hosts(store) == {}


def written(document):
    return msgspec.Raw(msgspec.json.encode(document))


def test_keeper_writes_each_change_and_hands_over(make_store):
    store = make_store()
    sink = NodeSink(READER)
    keeper = HostKeeper(store, 'one', sink)
    keeper.start()
    try:
        sink.replace([written(node('n1')), written({'metadata': {}})])
        wait_until(lambda: [*hosts(store)] == ['n1'])
        sink.put(written(node('n2')))
        wait_until(lambda: len(hosts(store)) == 2)
        sink.remove(written(node('n1')))
        wait_until(lambda: [*hosts(store)] == ['n2'])
        assert sink.find('n1') is None
    finally:
        keeper.stop(LIMIT_S)
    assert keeper_of(store, 'two').leads()
