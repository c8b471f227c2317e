"""Claims of pods and of instances stand in one book, and keep apart."""

from __future__ import annotations

import uuid

import pytest

from scheduler_service.model import HostReport, Instance
from scheduler_service.store import claims
from scheduler_service.store.claims import (
    claim_queries,
    lifecycle,
    pod_claims,
    released_claims,
)
from scheduler_service.store.claims.pod_claims import PodClaim
from scheduler_service.store.reading import residents
from scheduler_service.store.writing import hosts as host_rows
from scheduler_service.store.writing import instances as instance_rows
from tests.support.stores import (
    audit_findings,
    import_two_hosts,
    load_snapshot,
    new_claim,
    stored_host,
    used_amounts,
    used_memory,
    write_claims,
)

pytestmark = pytest.mark.db
MEMORY = {'MEMORY_MB': 1024}


def seen(*uids, host='compute-1', **amounts):
    return [
        PodClaim(uid, f'default/{uid}', host, host, amounts or MEMORY)
        for uid in uids
    ]


def confirm(store, pods):
    store.write(lambda writer: pod_claims.confirm(writer, pods))


def stored(store):
    with store.reading() as conn:
        found = pod_claims.stored(conn)
    return {claim.uid: (claim.host, claim.state) for claim in found}


def test_what_is_reported_of_instances_concerns_no_pod(store):
    snapshot = import_two_hosts(store)
    claimed = str(uuid.uuid4())
    write_claims(store, new_claim(snapshot, 512, consumer=claimed, kind='pod'))
    confirm(store, seen('a', 'b'))
    store.write(lambda w: instance_rows.sync(w, 'compute-1', []))
    report = HostReport('compute-1', 'compute-1', {}, instances=['a', claimed])
    store.write(lambda w: host_rows.report(w, [report]))
    store.write(lambda w: lifecycle.confirm(w, {claimed: None}))
    assert not store.write(lambda w: released_claims.expire(w, -1.0))['claims']
    assert stored(store) == {
        'a': ('compute-1', 'confirmed'),
        'b': ('compute-1', 'confirmed'),
        claimed: ('compute-1', 'claimed'),
    }
    assert used_amounts(store)['MEMORY_MB'] == 2 * 1024 + 512
    # A host reports what its instances use, and no pod is one of them.
    report = HostReport('compute-1', 'compute-1', {'memory_mb_used': 100})
    store.write(lambda w: host_rows.report(w, [report]))
    assert used_amounts(store)['MEMORY_MB'] == 100 + 2 * 1024 + 512
    assert not audit_findings(store)


def test_pods_count_by_what_they_use_alone(store):
    import_two_hosts(store)
    confirm(store, seen('a', 'b'))
    snapshot = load_snapshot(store)
    assert not len(snapshot.hosts.instances)
    assert snapshot.hosts.number('num_instances').tolist() == [0, 0]
    assert stored_host(store).num_instances == 0
    with store.reading() as conn:
        assert residents.requests(conn, 'compute-1') == []
        listed = claim_queries.listing(conn)
    assert sorted((row['kind'], row['request_id']) for row in listed) == [
        ('pod', 'default/a'),
        ('pod', 'default/b'),
    ]


def test_what_is_seen_of_pods_concerns_no_instance(store):
    snapshot = import_two_hosts(store)
    known, claim = str(uuid.uuid4()), new_claim(snapshot, 512)
    store.write(
        lambda w: instance_rows.add(
            w, [Instance(uuid=known, host='compute-1')]
        )
    )
    write_claims(store, claim)
    both = [known, claim.consumer]
    before = used_amounts(store)
    assert not store.write(lambda w: pod_claims.release(w, both))
    confirm(store, seen(*both))
    assert used_amounts(store) == before
    assert not stored(store)
    assert len(load_snapshot(store).hosts.instances) == 2


def test_a_pod_holds_what_it_was_seen_with(store):
    snapshot = import_two_hosts(store)
    claim = new_claim(snapshot, 1024, consumer='a', kind='pod')
    write_claims(store, claim)
    # As it was claimed; as it was not; where there is no room; elsewhere.
    confirm(store, seen('a', MEMORY_MB=1024, VCPU=1))
    assert stored(store) == {'a': ('compute-1', 'confirmed')}
    assert used_memory(store) == [1024, 0]
    confirm(store, seen('a', 'b', MEMORY_MB=3000))
    assert used_memory(store) == [6000, 0]
    confirm(store, seen('a', host='compute-2'))
    assert used_memory(store) == [3000, 1024]
    confirm(store, seen('c', host='unknown'))
    assert not audit_findings(store)
    assert not store.write(
        lambda w: pod_claims.release(w, ['a', 'b'], 'claimed')
    )
    assert store.write(lambda w: pod_claims.release(w, ['a', 'b', 'c'])) == [
        'a',
        'b',
    ]
    assert used_memory(store) == [0, 0]
    assert not stored(store)


def test_a_pod_gets_no_more_than_a_host_has(store):
    """Instances may overcommit a host; pods do not."""
    snapshot = import_two_hosts(store)
    pod = {'amounts': {'VCPU': 8}, 'ratios': {'VCPU': 1.0}, 'kind': 'pod'}
    write_claims(store, new_claim(snapshot, 512, amounts={'VCPU': 8}))
    with pytest.raises(claims.ClaimLost):
        write_claims(store, new_claim(snapshot, 512, **pod))
    # Neither together with an instance, whichever comes first.
    for number in '01':
        low = {'consumer': f'{number}-instance', 'amounts': {'VCPU': 4},
               'ratios': {'VCPU': 4.0}}  # fmt: skip
        with pytest.raises(claims.ClaimLost):
            write_claims(
                store,
                new_claim(snapshot, 0, **low),
                new_claim(snapshot, 0, **{**pod, 'consumer': '0-pod'}),
            )
    write_claims(store, new_claim(snapshot, 512, amounts={'VCPU': 8}))
    assert used_amounts(store)['VCPU'] == 16
