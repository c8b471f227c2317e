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
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.engine import headroom, host_listing
from scheduler_service.factory import engine_config
from scheduler_service.model import Request, client_documents, documents
from scheduler_service.store.claims import claim_queries
from scheduler_service.store.reading import residents
from scheduler_service.store.reading.snapshot import load_snapshot


def capacity(args: Any, conf: Any) -> output.Listing:
    """Return how full the zones are, or how many instances fit where."""
    if args.flavor:
        return _fits(args, conf)
    if args.by == 'host':
        raise WrongUsage('argument --by: host needs --flavor')
    snapshot = read(conf, load_snapshot)
    settings = options.settings(conf)
    rows = headroom.zone_rows(snapshot.hosts, settings, args.zone)
    _check_zone(args, conf, snapshot, rows)
    columns = [
        'zone', 'resource', 'capacity', 'used', 'out', 'free', 'full',
        'ends_first',
    ]  # fmt: skip
    return output.Listing(rows, columns)


def _check_zone(
    args: Any, conf: Any, snapshot: Snapshot, rows: Sequence[Any]
) -> bool:
    """Print the names of zones if ``--zone`` matches none; return whether."""
    if not args.zone or rows:
        return False
    for text in host_listing.remarks(
        snapshot.hosts,
        host_listing.HostCriteria(args.zone),
        conf.default_availability_zone,
        '--',
    ):
        output.remark(text)
        return True
    return False


def _fits(args: Any, conf: Any) -> output.Listing:
    request = _request(args.flavor).with_ids()
    if args.zone:
        request.availability_zone = args.zone
    snapshot = read(conf, load_snapshot)
    rows = [
        place.row(args.by)
        for place in headroom.fits(
            engine_config(conf).hosts,
            snapshot.hosts,
            request,
            conf.default_availability_zone,
            args.by == 'host',
        )
    ]
    fits = any(row['instances'] != 0 for row in rows)
    if not (_check_zone(args, conf, snapshot, rows) or fits):
        default = conf.default_availability_zone
        (move,) = headroom.drain(
            engine_config(conf).hosts, snapshot.hosts, [request], default
        )
        reason = move.reason or 'no host has room'
        output.remark(f'No instance fits: {reason}')
    columns = [args.by, 'hosts', 'instances', 'ends_first']
    return output.Listing(rows, columns)


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
        document = read_document(text, errors.InvalidRequest)
        if isinstance(document, dict) and 'flavor' not in document:
            document = {'flavor': client_documents.flavor(document)}
        return documents.checked_request(document)
    try:
        flavor = client_documents.flavor_of_text(text)
        return documents.checked_request({'flavor': flavor})
    except errors.InvalidRequest as fault:
        raise WrongUsage(f'argument --flavor: {fault.args[0]}') from None


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
    moves = headroom.drain(
        engine_config(conf).hosts,
        snapshot.hosts,
        requests,
        conf.default_availability_zone,
    )
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
