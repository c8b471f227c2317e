"""``scheduler-manage inventory``: documents of everything in the store."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
from oslo_db import exception as db_exception
from sqlalchemy.engine import Connection

from scheduler_service import errors, texts
from scheduler_service import extender_wire as wire
from scheduler_service.cmd import output
from scheduler_service.cmd.connections import open_store, read
from scheduler_service.cmd.program import WrongUsage, write_file
from scheduler_service.kube import node_reader
from scheduler_service.model import (
    Inventory,
    ServerGroup,
    client_documents,
    document_text,
    documents,
    problems,
)
from scheduler_service.store.connection import Writer
from scheduler_service.store.driver_errors import first_line
from scheduler_service.store.reading import loading
from scheduler_service.store.reading.snapshot import load_snapshot
from scheduler_service.store.writing import inventory_import


def read_document(
    path: str,
    fault: type[errors.SchedulerError] = errors.InvalidInventory,
) -> Any:
    """Return the plain values of a file; ``-`` is standard input.

    :param fault: the class of the error if the file cannot be read
    """
    return documents.read(*_text(path, fault), fault)


def _text(path: str, fault: type[errors.SchedulerError]) -> tuple[bytes, str]:
    try:
        if path == '-':
            return document_text.read_all(sys.stdin.buffer), 'standard input'
        with open(path, 'rb') as file:
            return document_text.read_all(file), path
    except OSError as error:
        raise fault(f'{path}: {error.strerror}', source=path) from None


def import_inventory(args: Any, conf: Any) -> output.Listing:
    """Import a document in a single transaction.

    :raises InvalidInventory: with all errors of the document
    :raises Conflict: a name or uuid belongs to another entity
    """
    columns = ['kind', 'added', 'changed', 'removed', 'same']
    output.check(args, columns)
    inventory = _inventory(args, conf)
    with open_store(conf) as store, output.progress() as progress:

        def work(writer: Writer) -> inventory_import.Report:
            _check_hosts(args, inventory, writer.conn)
            return inventory_import.Importer(
                writer, args.replace, progress
            ).run(inventory)

        try:
            report = store.write(work)
        except db_exception.DBDuplicateEntry as fault:
            raise errors.Conflict(
                f'A name or uuid is in use already: {first_line(fault)}'
            ) from None
    _print_kept(report.kept, 'stay')
    rows = [
        {'kind': kind, **counts} for kind, counts in report.to_dict().items()
    ]
    return output.Listing(rows, columns)


def _inventory(args: Any, conf: Any) -> Inventory:
    if args.file:
        return _checked(args, conf, lambda: _stored_hosts(args, conf))
    if args.replace:
        raise WrongUsage(
            '--replace would remove everything that is not a node: it needs a '
            'document of the whole inventory'
        )
    try:
        if args.from_nodes:
            nodes = read_document(args.from_nodes)
        else:
            nodes = {'items': _nodes_of(args.from_kubeconfig)}
        return node_reader.inventory_of(nodes, node_reader.of_options(conf))
    except wire.WireError as fault:
        raise errors.InvalidInventory(str(fault)) from None


def _nodes_of(kubeconfig: str) -> list[Any]:
    from scheduler_service.kube.api import Address, ApiLost, ApiServer

    try:
        nodes, _ = ApiServer(Address(kubeconfig)).list('nodes')
    except ApiLost as fault:
        raise errors.InvalidInventory(
            f'The API server does not answer: {fault}'
        ) from None
    return [msgspec.json.decode(node) for node in nodes]


def check(args: Any, conf: Any) -> None:
    """Check a document by itself, without the database.

    :raises InvalidInventory: with all errors of the document
    """
    stored = None if args.allow_missing_hosts else ()
    inventory = _checked(args, conf, lambda: stored)
    if not args.allow_missing_hosts:
        documents.refuse(problems.missing_hosts(inventory))
    counts = ', '.join(
        f'{len(items)} {kind}'
        for kind, items in msgspec.structs.asdict(inventory).items()
        if items
    )
    print(f'{args.file}: no errors: {counts or "nothing in it"}')


def diff(args: Any, conf: Any) -> output.Listing:
    """Return what an import would change; the status is 1 if any.

    :raises InvalidInventory: with all errors of the document
    """
    inventory = _checked(args, conf, lambda: _stored_hosts(args, conf))
    with open_store(conf) as store, store.reading() as conn:
        _check_hosts(args, inventory, conn)
        changes, kept = inventory_import.differences(
            conn, inventory, args.replace
        )
    _print_kept(kept, 'would stay')
    columns = ['kind', 'name', 'change', 'field', 'stored', 'wanted']
    rows = [row._asdict() for row in changes]
    return output.Listing(rows, columns, status=int(bool(rows)))


def _print_kept(groups: Sequence[ServerGroup], what: str) -> None:
    if groups:
        names = sorted(
            f'{group.name} ({group.uuid})'
            if group.name not in ('', group.uuid)
            else group.uuid
            for group in groups
        )
        output.remark(
            f'--replace: {len(groups)} server groups {what}, since instances '
            f'are members of them: {texts.some(names)}'
        )


def _checked(
    args: Any,
    conf: Any,
    stored_hosts: Callable[[], Collection[str] | None],
) -> Inventory:
    """Return the document of a file, which a client may have printed.

    :param stored_hosts: called for an invalid document: see
        :func:`problems.of_inventory`
    :raises InvalidInventory: with all errors in ``problems``
    """
    fault = errors.InvalidInventory
    printed, twice = document_text.read(*_text(args.file, fault), fault)
    document = client_documents.inventory(
        printed, conf.pool_scheduler.default_pool_id
    )
    if document is not printed and getattr(args, 'replace', False):
        raise WrongUsage(
            '--replace would remove everything else: what a client prints is '
            'not the whole inventory'
        )
    try:
        inventory = documents.inventory(document)
        documents.refuse(twice)
    except errors.InvalidInventory:
        more = problems.of_inventory(document, stored_hosts())
        documents.refuse([*twice, *more])
        raise
    return inventory


def _stored_hosts(args: Any, conf: Any) -> Collection[str] | None:
    """Return the hosts that aggregates may name beside the document's.

    :return: None: any, also where the database does not answer: the errors
        of a document are printed without it
    """
    if args.allow_missing_hosts:
        return None
    if args.replace:
        return ()
    try:
        return read(conf, loading.host_names)
    except errors.SchedulerError:
        return None


def _check_hosts(args: Any, inventory: Inventory, conn: Connection) -> None:
    if args.allow_missing_hosts:
        return
    stored = () if args.replace else loading.host_names(conn)
    documents.refuse(problems.missing_hosts(inventory, stored))


def export(args: Any, conf: Any) -> None:
    """Print everything in the store as a document, or write it to a file."""
    document = read(conf, loading.export)
    if args.output is None:
        output.document(document, args.format)
        return
    text = output.encoded(document, args.format)
    write_file(pathlib.Path(args.output), text)


def show(args: Any, conf: Any) -> output.Listing:
    snapshot = read(conf, load_snapshot)
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
        offered = (columns.total >= 0) & (hosts.shared.get(name, 0) == 0)
        counts[f'{name} in all'] = int(columns.total[offered].sum())
        counts[f'{name} used'] = int(columns.used[offered].sum())
    for aggregate in hosts.topology.aggregates.values():
        for name, offer in sorted(aggregate.resources.items()):
            label = f'{name} of aggregate {aggregate.name}'
            counts[f'{label} in all'] = offer.total
            counts[f'{label} used'] = offer.used
    rows = [{'what': name, 'count': n} for name, n in counts.items()]
    return output.Listing(rows, ['what', 'count'])
