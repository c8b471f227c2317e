"""Batches that meet on the same hosts lock them in one order."""

from __future__ import annotations

import contextlib
import threading
import uuid
from typing import Any

import msgspec
import pytest

from scheduler_service.store import claims
from scheduler_service.store.claims import lifecycle
from scheduler_service.store.connection import Store
from tests.support.databases import listens
from tests.support.stores import (
    DEFAULT_RATIOS,
    import_inventory,
    sent,
    write_claims,
)
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.db

AMOUNTS = {'DISK_GB': 1, 'MEMORY_MB': 8, 'VCPU': 1}


def cloud(store: Store, hosts: int) -> None:
    """Bring in hosts with room for thousands, their ids from 1."""
    import_inventory(store, {'hosts': [
        {'host': f'c{number}', 'vcpus': 999, 'memory_mb': 2**20,
         'local_gb': 2**20}
        for number in range(hosts)
    ]})  # fmt: skip


def some(host_ids: list[int]) -> list[claims.Claim]:
    return [
        claims.Claim(
            consumer=str(uuid.uuid4()),
            host_id=host_id,
            host=f'c{host_id - 1}',
            node=f'c{host_id - 1}',
            amounts=AMOUNTS,
            ratios={},
            project_id=None,
            request_id=None,
            document='{}',
            placement='{}',
        )
        for host_id in host_ids
    ]


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a node of a plan and all below it."""
    below = [node for part in plan.get('Plans', ()) for node in nodes(part)]
    return [plan, *below]


@pytest.mark.parametrize('hosts', [1, 30, 3000])
@pytest.mark.parametrize('analyzed', [False, True])
def test_rows_are_locked_in_the_order_of_the_claims(
    make_store, hosts, analyzed
):
    store = make_store('postgresql', own=True)
    cloud(store, hosts)
    with store.hold() as held:
        conn = held.execution_options(isolation_level='AUTOCOMMIT')
        if analyzed:
            conn.exec_driver_sql('ANALYZE')
        for kind in ('one', 'several', 'of a group', 'stays'):
            check_order(store, conn, kind, hosts)


def check_order(store: Store, conn: Any, kind: str, hosts: int) -> None:
    """Claim; check the plan of the statement that locks rows."""
    batch = some([1] if kind == 'one' else [1, 1])
    if kind == 'of a group':
        group = str(uuid.uuid4())
        batch[0] = msgspec.structs.replace(batch[0], group=group)
    prepared = claims.ClaimBatch(store, batch, DEFAULT_RATIOS)
    sent(prepared, conn).wait()
    if kind == 'stays':
        how = {'is_present': True, 'move': True, 'may_stay': True}
        batch = [msgspec.structs.replace(one, **how) for one in batch]
        prepared = claims.ClaimBatch(store, batch, DEFAULT_RATIOS)
        sent(prepared, conn).wait()
    *_, made = (
        one.statement
        for one in prepared.statements
        if b'UPDATE inventories' in one.statement.text
    )
    nulls = ', '.join(['NULL'] * len(made.order))
    (told,) = conn.exec_driver_sql(
        f'EXPLAIN (FORMAT JSON) EXECUTE {made.name.decode()}({nulls})'
    ).one()
    took = next(
        node
        for node in nodes(told[0]['Plan'])
        if node.get('Subplan Name') == 'CTE changed'
    )
    (join,) = took['Plans']
    assert join['Node Type'] == 'Nested Loop'
    leading, looked_up = join['Plans']
    names = [node.get('Relation Name') for node in nodes(leading)]
    assert 'inventories' not in names
    assert looked_up['Relation Name'] == 'inventories'
    if hosts == 3000:
        assert looked_up['Node Type'] == 'Index Scan'


@pytest.mark.parametrize('kind', ['postgresql', 'mariadb'])
def test_no_deadlock_when_batches_name_hosts_in_other_orders(kind, make_store):
    store = make_store(kind)
    cloud(store, 3)
    reasons: list[str] = []
    store.on_retry = reasons.append
    faults: list[BaseException] = []
    meeting = threading.Barrier(4, timeout=LIMIT_S)

    def work(number: int) -> None:
        order = [1, 2, 3] if number % 2 else [3, 2, 1]
        try:
            with store.hold() as held:
                conn = held.execution_options(isolation_level='AUTOCOMMIT')
                meeting.wait()
                for turn in range(20):
                    batch = some(order[: 1 + turn % 3])
                    prepared = claims.ClaimBatch(store, batch, DEFAULT_RATIOS)
                    sent(prepared, conn).wait()
                    if turn % 4 == number:
                        gone = [one.consumer for one in batch]
                        store.write(lambda w, g=gone: lifecycle.release(w, g))
        except BaseException as fault:
            faults.append(fault)
            meeting.abort()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not faults
    assert reasons == []


@pytest.mark.parametrize('kind', ['postgresql', 'mariadb'])
@pytest.mark.parametrize(
    ('moment', 'meets'),
    [('FROM allocations', 'claim'), ('DELETE ', 'release')],
)
def test_no_deadlock_when_a_release_is_met(kind, moment, meets, make_store):
    """By a claim of its own instances, or by a release on the same host."""
    store = make_store(kind)
    cloud(store, 1)
    batch = some([1] * 14)
    mine, others = batch[::2], batch[1::2]
    write_claims(store, *batch)
    reasons: list[str] = []
    store.on_retry = reasons.append
    uuids = [one.consumer for one in mine]

    def meet() -> None:
        if meets == 'claim':
            # PostgreSQL does not wait for rows that are not deleted yet.
            with contextlib.suppress(claims.ClaimLost):
                write_claims(store, *reversed(mine))
        else:
            gone = [one.consumer for one in others]
            store.write(lambda w: lifecycle.release(w, gone))

    thread = threading.Thread(target=meet)

    @listens(store, 'before_cursor_execute')
    def look(conn, cursor, statement, *_):
        if moment in statement and thread.ident is None:
            thread.start()
            thread.join(0.5)

    assert store.write(lambda w: lifecycle.release(w, uuids)) == sorted(uuids)
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert reasons == []
