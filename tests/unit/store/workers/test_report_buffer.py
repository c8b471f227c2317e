"""ReportBuffer: what is merged, and what is written together."""

from typing import Any

from scheduler_service.model import HostReport, documents
from scheduler_service.store.workers.host_state_writer import (
    DeleteAggregate,
    ReportBuffer,
    SyncInstances,
    UpdateInstances,
)


def report(host: str, **fields: Any) -> HostReport:
    return documents.host_report({'host': host, **fields})


def test_the_newest_value_of_each_field_is_kept():
    buffer = ReportBuffer()
    buffer.add_reports([report('a', vcpus=4, memory_mb=100)])
    buffer.add_reports([report('a', vcpus=8), report('b', vcpus=1)])
    assert {key: one.changes for key, one in buffer.reports.items()} == {
        ('a', 'a'): {'vcpus': 8, 'memory_mb': 100},
        ('b', 'b'): {'vcpus': 1},
    }


def test_nodes_of_one_host_are_kept_apart_and_are_one_heartbeat():
    buffer = ReportBuffer()
    buffer.add_reports(
        [
            report('a', hypervisor_hostname='node-1', vcpus=4),
            report('a', hypervisor_hostname='node-2', vcpus=8),
        ]
    )
    assert list(buffer.reports) == [('a', 'node-1'), ('a', 'node-2')]
    assert buffer.heartbeats == {'a'}


def test_merge_puts_newer_values_over_older_ones():
    older, newer = ReportBuffer(), ReportBuffer()
    older.add_reports([report('a', vcpus=4, memory_mb=100)])
    newer.add_reports([report('a', vcpus=8), report('b', vcpus=1)])
    first, second = DeleteAggregate(id=1), DeleteAggregate(id=2)
    older.events.append(first)
    newer.events.append(second)
    older.merge(newer)
    assert older.reports['a', 'a'].changes == {'vcpus': 8, 'memory_mb': 100}
    assert older.heartbeats == {'a', 'b'}
    assert older.events == [first, second]


def test_consecutive_updates_of_instances_are_one_batch():
    updates = [UpdateInstances(instances=[]) for _ in range(4)]
    sync = SyncInstances(host='a', uuids=[])
    delete = DeleteAggregate(id=1)
    buffer = ReportBuffer()
    buffer.events = [*updates[:3], sync, delete, updates[3]]
    assert list(buffer.event_batches()) == [
        updates[:3], [sync], [delete], [updates[3]],
    ]  # fmt: skip
