"""Tables that are built from other tables."""

from __future__ import annotations

from scheduler_service.columns.build import with_hosts
from scheduler_service.model import Host
from scheduler_service.testing import table


def test_hosts_are_added_replaced_and_removed_when_rebuilt():
    before = table(
        {'hosts': [{'host': 'a', 'vcpus': 1}, {'host': 'b', 'vcpus': 2}]}
    )
    after = with_hosts(
        before, [(1, Host(host='b', vcpus=9)), (7, Host(host='c'))], [0]
    )
    assert after.ids.tolist() == [1, 7]
    assert after.resources['VCPU'].total.tolist() == [9, 0]
    assert [after.host_at(row) for row in range(2)] == ['b', 'c']
    assert before.resources['VCPU'].total.tolist() == [1, 2]
