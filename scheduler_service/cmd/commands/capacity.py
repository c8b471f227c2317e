"""``scheduler-manage capacity`` and ``host drain``: what fits where."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from scheduler_service import conf as options
from scheduler_service import errors
from scheduler_service.cmd import output
from scheduler_service.cmd.commands.inventory import read_document
from scheduler_service.cmd.connections import read
from scheduler_service.cmd.program import WrongUsage
from scheduler_service.columns.table import Snapshot
from scheduler_service.factory import engine_config
from scheduler_service.model import Request, client_documents, documents
from scheduler_service.planning import headroom, host_listing
from scheduler_service.settings import Settings
from scheduler_service.store.claims import claim_queries
from scheduler_service.store.reading import residents
from scheduler_service.store.reading.snapshot import load_snapshot


def capacity(args: Any, conf: Any) -> output.Listing:
    """Return how full the zones are, or how many instances fit where."""
    if args.flavor or args.flavors:
        return _fits(args, conf)
    if args.by != 'zone':
        raise WrongUsage(
            f'argument --by: {args.by} needs --flavor or --flavors'
        )
    snapshot = read(conf, load_snapshot)
    settings = options.settings(conf)
    rows = headroom.zone_rows(snapshot.hosts, settings, args.zone)
    _check_zone(args, settings, snapshot, rows)
    columns = [
        'zone', 'resource', 'capacity', 'used', 'over', 'out', 'free',
        'full', 'ends_first',
    ]  # fmt: skip
    return output.Listing(rows, columns)


def _check_zone(
    args: Any, settings: Settings, snapshot: Snapshot, rows: Sequence[Any]
) -> None:
    """Print the names of zones if ``--zone`` matches none."""
    if not rows:
        criteria, table = host_listing.HostCriteria(args.zone), snapshot.hosts
        output.remark(*host_listing.remarks(table, criteria, settings, '--'))


def _fits(args: Any, conf: Any) -> output.Listing:
    wanted = [(text, _request(text)) for text in args.flavor]
    if args.flavors:
        wanted += _requests(args.flavors)
    several = len(wanted) > 1
    snapshot = read(conf, load_snapshot)
    pipeline = engine_config(conf).hosts
    rows: list[dict[str, Any]] = []
    for name, request in wanted:
        asked = request.with_ids()
        if args.zone:
            asked.availability_zone = args.zone
        found = headroom.fits(pipeline, snapshot.hosts, asked, args.by)
        if found and all(place.instances == 0 for place in found):
            (move,) = headroom.drain(pipeline, snapshot.hosts, [asked])
            reason = move.reason or 'no host has room'
            which = f' of {name}' if several else ''
            output.remark(f'No instance{which} fits: {reason}')
        first = {'flavor': name} if several else {}
        rows += [{**first, **place.row(args.by)} for place in found]
    _check_zone(args, pipeline.settings, snapshot, rows)
    columns = [args.by, 'hosts', 'instances', 'ends_first']
    return output.Listing(rows, ['flavor', *columns] if several else columns)


_DRAINED = [
    'instance', 'project_id', 'vcpus', 'memory_mb', 'disk_gb', 'to', 'zone',
    'reason',
]  # fmt: skip


def _request(text: str) -> Request:
    """Return a request for one instance of a flavor.

    :param text: a file with a flavor, also as a client prints it, or with a
        request, or ``vcpus=2,...``
    :raises InvalidRequest: the file has neither
    :raises WrongUsage: the text is neither a file nor a flavor
    """
    if '=' not in text or pathlib.Path(text).exists():
        return _of_document(read_document(text, errors.InvalidRequest))
    try:
        flavor = client_documents.flavor_of_text(text)
        return documents.checked_request({'flavor': flavor})
    except errors.InvalidRequest as fault:
        raise WrongUsage(f'argument --flavor: {fault.args[0]}') from None


def _requests(path: str) -> list[tuple[str, Request]]:
    """Return the names of the flavors of a file, and requests for them.

    :param path: of a list of flavors, also as a client prints it, or of
        requests
    :raises InvalidRequest: it is no list, or an entry is neither
    """
    listed = read_document(path, errors.InvalidRequest)
    if not isinstance(listed, list):
        raise errors.InvalidRequest(f'{path}: expected a list of flavors')
    found = []
    for number, entry in enumerate(listed, 1):
        request = _of_document(entry)
        flavor = request.flavor
        name = flavor.name or flavor.flavorid or f'{path} {number}'
        found.append((name, request))
    return found


def _of_document(document: Any) -> Request:
    if isinstance(document, dict) and 'flavor' not in document:
        document = {'flavor': client_documents.flavor(document)}
    return documents.checked_request(document)


def drain(args: Any, conf: Any) -> output.Listing:
    """Return where each instance of a host could go.

    The status is 1 if an instance fits nowhere.

    :raises HostNotFound: the host does not exist
    """
    snapshot, requests, claims = read(
        conf,
        lambda conn: (
            load_snapshot(conn),
            residents.requests(conn, args.host),
            claim_queries.listing(conn, args.host),
        ),
    )
    if not len(snapshot.hosts.rows_of_host(args.host)):
        raise errors.HostNotFound(f'There is no host {args.host}')
    pipeline = engine_config(conf).hosts
    moves = headroom.drain(pipeline, snapshot.hosts, requests)
    rows = [
        {
            'instance': move.request.instance_uuids[0],
            'project_id': move.request.project_id,
            'vcpus': move.request.resources.get('VCPU'),
            'memory_mb': move.request.resources.get('MEMORY_MB'),
            'disk_gb': move.request.resources.get('DISK_GB'),
            'to': move.host,
            'node': move.node,
            'zone': move.zone,
            'reason': move.reason or None,
        }
        for move in moves
    ]
    stuck = any(row['to'] is None for row in rows)
    rows += [
        {
            **dict.fromkeys([*_DRAINED, 'node']),
            'instance': claim['request_id'],
            'project_id': claim['project_id'],
            'reason': 'a pod: its cluster evicts it',
        }
        for claim in sorted(claims, key=lambda row: str(row['request_id']))
        if claim['kind'] == 'pod'
    ]
    if not rows:
        output.remark(
            f'No instance is on host {args.host}: there is nothing to move'
        )
    return output.Listing(rows, _DRAINED, ['node'], status=int(stuck))
