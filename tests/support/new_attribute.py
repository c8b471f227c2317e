"""A program that uses attributes which a copy of the package declares.

``python -m tests.support.new_attribute URL`` runs it; the package has the
lines ``FIELDS`` in its document of hosts, and the database ``COLUMNS``.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.columns import HostTable, build_table
from scheduler_service.filters.hosts.json_filter import JsonFilter
from scheduler_service.model import Host, documents
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import loading
from scheduler_service.store.writing import hosts
from scheduler_service.testing import filter_results
from tests.support.stores import import_inventory, load_snapshot

FIELDS = """\
    rack: Annotated[Short | None, HostColumn.ENCODED] = None
    fans: Annotated[Count, HostColumn.COUNT] = 0
    power: Annotated[Literal['on', 'off'], HostColumn.FLAG] = 'on'
    gpus: Annotated[dict[str, Any] | None, HostColumn.JSON] = {}
"""
# What a migration would add.
COLUMNS = (
    'rack VARCHAR(255)',
    'fans BIGINT NOT NULL DEFAULT 0',
    "power VARCHAR(16) NOT NULL DEFAULT 'on'",
)
STATED = {'rack': 'r1', 'fans': 4, 'power': 'off', 'gpus': {'count': 2}}
INVENTORY = {'hosts': [{'host': 'a', **STATED}, {'host': 'b'}]}
QUERIES = {
    '["=", "$rack", "r1"]': {'a': True, 'b': False},
    '["<", "$fans", 1]': {'a': False, 'b': True},
    '["=", "$gpus.count", 2]': {'a': True, 'b': False},
}


def main(url: str) -> None:
    """Write, read and query the new attributes; raise where one is lost."""
    store = Store.connect(url)
    import_inventory(store, INVENTORY)
    with store.reading() as conn:
        stored = loading.hosts(conn)
    for name, value in STATED.items():
        read = [getattr(host, name) for host in stored.values()]
        assert read == [value, getattr(Host(host='b'), name)], (name, read)
    loaded = load_snapshot(store).hosts
    for table in (loaded, build_table(list(stored.items()))):
        assert values(table, 0) == ['r1', 4, False, b'{"count":2}']
        assert values(table, 1) == [None, 0, True, b'{}']

    report = documents.host_report({'host': 'b', 'rack': 'r2', 'power': 'off'})
    store.write(lambda writer: hosts.report(writer, [report]))
    loaded = load_snapshot(store).hosts
    assert values(loaded, 1) == ['r2', 0, False, b'{}']

    length = schema.hosts.c['rack'].type.length  # type: ignore[attr-defined]
    with pytest.raises(errors.InvalidRequest) as refused:
        documents.host_report({'host': 'b', 'rack': 'r' * (length + 1)})
    assert refused.value.facts['at'] == 'rack'

    for query, expected in QUERIES.items():
        request = {'scheduler_hints': {'query': query}}
        passing = filter_results(JsonFilter(), INVENTORY, request)
        assert passing == expected, (query, passing)


def values(table: HostTable, row: int) -> list[Any]:
    """Return the columns of the new attributes at a row."""
    return [
        table.coded['rack'].at(row),
        table.number('fans')[row].item(),
        table.number('on')[row].item(),
        table.coded['gpus'].at(row),
    ]


if __name__ == '__main__':
    main(*sys.argv[1:])
