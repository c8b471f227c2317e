"""``scheduler-manage inventory``."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

from oslo_db import exception as db_exception

from scheduler_service import errors
from scheduler_service.cmd import output
from scheduler_service.cmd.commands import opened
from scheduler_service.model import documents
from scheduler_service.store.connection import first_line
from scheduler_service.store.reading import inventory_export
from scheduler_service.store.reading.snapshot_loading import load_snapshot
from scheduler_service.store.writing import inventory_import


def read(
    path: str,
    fault: type[errors.SchedulerError] = errors.InvalidInventory,
) -> Any:
    """Return the plain values of a file, or of standard input for ``-``.

    :param fault: the error to raise where it cannot be read
    """
    try:
        if path == '-':
            text, source = sys.stdin.buffer.read(), 'standard input'
        else:
            text, source = pathlib.Path(path).read_bytes(), path
    except OSError as error:
        raise fault(f'{path}: {error.strerror}', source=path) from None
    return documents.read(text, source, fault)


def bring(args: Any, conf: Any) -> None:
    """Bring in a document, whole or not at all."""
    wanted = documents.inventory(read(args.file))
    with opened(conf) as store, output.progress() as progress:
        try:
            report = store.write(
                lambda writer: inventory_import.Importer(
                    writer, args.replace, progress
                ).run(wanted)
            )
        except db_exception.DBDuplicateEntry as fault:
            raise errors.Conflict(
                f'A name or uuid is taken: {first_line(fault)}'
            ) from None
    rows = [
        {'kind': kind, **counts} for kind, counts in report.to_dict().items()
    ]
    columns = ['kind', 'added', 'changed', 'removed', 'same']
    output.listing(rows, columns, args.format)


def export(args: Any, conf: Any) -> None:
    """Print the whole store as a document."""
    with opened(conf) as store, store.reading() as conn:
        found = inventory_export.export(conn)
    output.document(found, args.format)


def show(args: Any, conf: Any) -> None:
    """Count what there is."""
    with opened(conf) as store, store.reading() as conn:
        snapshot = load_snapshot(conn)
    hosts = snapshot.hosts
    up = hosts.number('enabled') & hosts.number('up')
    counts = {
        'pools': len(snapshot.pools),
        'hosts': len(hosts),
        'hosts that are enabled and up': int(up.sum()),
        'aggregates': len(hosts.topology.aggregates),
        'instances': len(hosts.instances),
        'server groups': len(hosts.groups),
    }
    for name, columns in sorted(hosts.resources.items()):
        offered = columns.total >= 0
        counts[f'{name} in all'] = int(columns.total[offered].sum())
        counts[f'{name} used'] = int(columns.used[offered].sum())
    rows = [{'what': name, 'count': n} for name, n in counts.items()]
    output.listing(rows, ['what', 'count'], args.format)
