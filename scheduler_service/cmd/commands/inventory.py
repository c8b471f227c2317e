"""``scheduler-manage inventory``: documents of everything in the store."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

from oslo_db import exception as db_exception

from scheduler_service import errors
from scheduler_service.cmd import output
from scheduler_service.cmd.commands import open_store
from scheduler_service.model import documents
from scheduler_service.store.faults import first_line
from scheduler_service.store.reading import inventory_export
from scheduler_service.store.reading.snapshot_loading import load_snapshot
from scheduler_service.store.writing import inventory_import


def read(
    path: str,
    fault: type[errors.SchedulerError] = errors.InvalidInventory,
) -> Any:
    """Return the plain values of a file; ``-`` is standard input.

    :param fault: the class of the error if it cannot be read
    """
    try:
        if path == '-':
            text, source = sys.stdin.buffer.read(), 'standard input'
        else:
            text, source = pathlib.Path(path).read_bytes(), path
    except OSError as error:
        raise fault(f'{path}: {error.strerror}', source=path) from None
    return documents.read(text, source, fault)


def import_inventory(args: Any, conf: Any) -> None:
    """Import a document in one transaction.

    :raises Conflict: a name or uuid belongs to something else
    """
    wanted = documents.inventory(read(args.file))
    with open_store(conf) as store, output.progress() as progress:
        try:
            report = store.write(
                lambda writer: inventory_import.Importer(
                    writer, args.replace, progress
                ).run(wanted)
            )
        except db_exception.DBDuplicateEntry as fault:
            raise errors.Conflict(
                f'A name or uuid is in use already: {first_line(fault)}'
            ) from None
    rows = [
        {'kind': kind, **counts} for kind, counts in report.to_dict().items()
    ]
    columns = ['kind', 'added', 'changed', 'removed', 'same']
    output.listing(rows, columns, args)


def export(args: Any, conf: Any) -> None:
    """Print everything in the store as one document."""
    with open_store(conf) as store, store.reading() as conn:
        document = inventory_export.export(conn)
    output.document(document, args.format)


def show(args: Any, conf: Any) -> None:
    """Print how many hosts, pools and so on there are."""
    with open_store(conf) as store, store.reading() as conn:
        snapshot = load_snapshot(conn)
    hosts = snapshot.hosts
    available = hosts.number('enabled') & hosts.number('up')
    counts = {
        'pools': len(snapshot.pools),
        'hosts': len(hosts),
        'hosts that are enabled and up': int(available.sum()),
        'aggregates': len(hosts.topology.aggregates),
        'instances': len(hosts.instances),
        'server groups': len(hosts.groups),
    }
    for name, columns in sorted(hosts.resources.items()):
        offered = columns.total >= 0
        counts[f'{name} in all'] = int(columns.total[offered].sum())
        counts[f'{name} used'] = int(columns.used[offered].sum())
    rows = [{'what': name, 'count': n} for name, n in counts.items()]
    output.listing(rows, ['what', 'count'], args)
