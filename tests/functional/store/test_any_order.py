"""Operations of the store in any order keep use equal to allocations."""

import contextlib
import uuid
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from scheduler_service.model import Instance, documents
from scheduler_service.store import claims, schema
from scheduler_service.store.claims import lifecycle, released_claims
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import (
    change_feed,
    loading,
    snapshot,
)
from scheduler_service.store.records import audit
from scheduler_service.store.writing import hosts as host_rows
from scheduler_service.store.writing import instances as instance_rows
from tests.support.stores import (
    DEFAULT_RATIOS,
    HOSTS,
    STRICT,
    assert_same_snapshot,
    claim_on,
    import_inventory,
    load_snapshot,
    sharing_claim,
    wipe,
    write_claims,
)

pytestmark = [pytest.mark.db, pytest.mark.slow]

GROUP = 'aaaaaaaa-0000-4000-8000-000000000002'
# Few, so that most rules meet what earlier ones did.
CONSUMERS = [str(uuid.UUID(int=n + 1)) for n in range(3)]
some = st.lists(st.sampled_from(CONSUMERS), min_size=1, max_size=2,
                unique=True)  # fmt: skip


class Verbs(RuleBasedStateMachine):
    """Any verbs of the store in any order: what is used is allocated.

    Three hosts of 4,096 MB and one group; three consumers at most.
    """

    store: Store

    def __init__(self) -> None:
        super().__init__()
        wipe(self.store)
        import_inventory(self.store, {
            'hosts': [
                {'host': name, 'vcpus': 4, 'memory_mb': 4096,
                 'local_gb': 40, 'ram_allocation_ratio': 1.0,
                 'memory_mb_used': 512}
                for name in HOSTS
            ],
            'aggregates': [{'id': 1, 'hosts': [*HOSTS[:2]],
                            'resources': {'CUSTOM_A': {'total': 3}}}],
            'server_groups': [{'uuid': GROUP, 'policy': 'anti-affinity'}],
        })  # fmt: skip
        self.follower = load_snapshot(self.store)
        # That were placed as members, and are not gone.
        self.members = {*CONSUMERS[:2]}
        write_claims(self.store, *(
            sharing_claim(self.follower, row, {'MEMORY_MB': 256, 'VCPU': 1},
                          consumer=one, group=GROUP)
            for row, one in enumerate(CONSUMERS[:2])
        ), policies=STRICT)  # fmt: skip

    @rule(
        consumers=some,
        row=st.integers(0, 2),
        amount=st.sampled_from([256, 2048]),
        licences=st.integers(0, 2),
        grouped=st.booleans(),
        move=st.sampled_from([True, True, False]),
    )
    def claim(self, consumers, row, amount, licences, grouped, move):
        snapshot = load_snapshot(self.store)
        wanted, amounts = [], {'MEMORY_MB': amount, 'VCPU': 1}
        if licences:
            amounts['CUSTOM_A'] = licences
        for consumer in consumers:
            known = snapshot.hosts.instances.get(consumer) is not None
            wanted.append(
                sharing_claim(
                    snapshot, row, amounts, consumer=consumer,
                    is_present=known, move=move and known,
                    group=GROUP if grouped else None)
            )  # fmt: skip
        before = held(self.store)
        try:
            write_claims(self.store, *wanted, policies=STRICT)
        except claims.ClaimLost:
            assert held(self.store) == before
            return
        if grouped:
            self.members.update(consumers)

    @precondition(lambda self: self.members)
    @rule(row=st.integers(0, 2))
    def move_a_member_without_its_group(self, row):
        moved = claim_on(
            load_snapshot(self.store), row, consumer=min(self.members),
            is_present=True, amounts={'VCPU': 1}, move=True,
        )  # fmt: skip
        with contextlib.suppress(claims.ClaimLost):
            write_claims(self.store, moved, policies=STRICT)

    @rule(consumers=some)
    def release(self, consumers):
        self.store.write(lambda w: lifecycle.release(w, consumers))
        left = held(self.store)
        assert not {one for one, *_ in left} & {*consumers}

    @rule(consumers=some, host=st.sampled_from((*HOSTS, None)))
    def confirm(self, consumers, host):
        seen = dict.fromkeys(consumers, host)
        self.store.write(lambda w: lifecycle.confirm(w, seen))

    @rule(consumers=some)
    def drop_moves(self, consumers):
        self.store.write(lambda w: lifecycle.drop_moves(w, consumers))

    @rule(consumers=some, host=st.sampled_from(HOSTS))
    def leave(self, consumers, host):
        self.store.write(
            lambda w: lifecycle.remove_from_host(w, host, consumers)
        )

    @rule(consumers=some, host=st.sampled_from(HOSTS))
    def seen(self, consumers, host):
        there = [Instance(uuid=consumer, host=host) for consumer in consumers]
        self.store.write(lambda w: instance_rows.report(w, there))

    @rule(consumers=some, host=st.sampled_from(HOSTS))
    def sync(self, consumers, host):
        self.store.write(lambda w: instance_rows.sync(w, host, consumers))

    @rule(timeout=st.sampled_from([-60, 60]))
    def expire(self, timeout):
        self.store.write(lambda w: released_claims.expire(w, timeout))

    @rule(host=st.sampled_from(HOSTS), use=st.integers(0, 2048),
          least=st.none() | st.integers(0, 40))  # fmt: skip
    def report(self, host, use, least):
        told = documents.host_report({
            'host': host, 'memory_mb_used': use,
            'disk_available_least': least,
        })  # fmt: skip
        self.store.write(lambda w: host_rows.report(w, [told]))

    @rule(host=st.sampled_from(HOSTS), use=st.integers(0, 1024))
    def bring_in(self, host, use):
        import_inventory(self.store, {'hosts': [
            {'host': host, 'vcpus': 4, 'memory_mb': 4096, 'local_gb': 40,
             'ram_allocation_ratio': 1.0, 'memory_mb_used': use},
        ]})  # fmt: skip

    @rule(total=st.integers(1, 3), hosts=st.sets(st.sampled_from(HOSTS)))
    def offer(self, total, hosts):
        import_inventory(self.store, {'aggregates': [
            {'id': 1, 'hosts': sorted(hosts),
             'resources': {'CUSTOM_A': {'total': total}}},
        ]})  # fmt: skip

    @rule()
    def export_and_import(self):
        before = held(self.store)
        with self.store.reading() as conn:
            document = documents.dump(loading.export(conn))
        import_inventory(self.store, documents.read(document))
        assert held(self.store) == before

    @rule()
    def mend(self):
        assert self.store.write(audit.fix) == 0

    @precondition(lambda self: self.follower is not None)
    @invariant()
    def use_is_what_is_allocated(self):
        with self.store.reading() as conn:
            found = audit.audit(conn, DEFAULT_RATIOS)
            # Somebody else's report may overcommit a host, or have members of
            # a group on one, a claim may not.
            wrong = [
                finding
                for finding in found.findings
                if finding.kind not in ('overcommitted', 'policy')
            ]
            assert wrong == []
            assert group_hosts(conn)
            self.follower = change_feed.refresh(conn, self.follower)
            assert_same_snapshot(self.follower, snapshot.load_snapshot(conn))
        hosts = self.follower.hosts
        self.members = {*hosts.instances.among(self.members)}
        assert self.members <= {*hosts.groups[GROUP].members}


def held(store: Store) -> set[tuple[str, int, str, int]]:
    """Return all allocations."""
    with store.reading() as conn:
        rows = conn.execute(sa.select(schema.allocations))
        return {tuple(row) for row in rows}


def group_hosts(conn: Any) -> bool:
    """Whether claims keep the group's members apart.

    Hosts may report members together: that is not for claims to prevent.
    """
    inst, moves = schema.instances, schema.moves
    places = sa.union_all(
        sa.select(inst.c.uuid, inst.c.host).where(inst.c.state == 'claimed'),
        sa.select(moves.c.instance_uuid, moves.c.host),
    ).subquery()
    members = schema.server_group_members.c.instance_uuid
    mine = sa.select(places).where(places.c.uuid.in_(sa.select(members)))
    hosts = [host for _, host in {tuple(row) for row in conn.execute(mine)}]
    return len(hosts) == len(set(hosts))


def test_use_equals_allocations_when_operations_come_in_any_order(store):
    class Here(Verbs):
        pass

    Here.store = store
    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=5,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
