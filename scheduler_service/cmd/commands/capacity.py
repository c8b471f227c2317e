"""``scheduler-manage capacity`` and ``host drain``: what fits where."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from scheduler_service import conf as options
from scheduler_service import errors
from scheduler_service.cmd import output
from scheduler_service.cmd.commands import open_store
from scheduler_service.cmd.commands.inventory import read
from scheduler_service.cmd.commands.resources import pairs, zone_names
from scheduler_service.cmd.parser_parts import WrongUsage
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.engine import headroom
from scheduler_service.engine.factory import plan
from scheduler_service.model import Request, documents
from scheduler_service.store.reading import residents
from scheduler_service.store.reading.snapshot_loading import load_snapshot

_NUMBERS = ('vcpus', 'memory_mb', 'root_gb', 'ephemeral_gb', 'swap')


def capacity(args: Any, conf: Any) -> None:
    """Print how full the zones are, or how much of a flavor fits where."""
    if args.flavor:
        _fits(args, conf)
        return
    if args.by == 'host':
        raise WrongUsage('argument --by: host needs --flavor')
    snapshot = _snapshot(conf)
    found = headroom.by_zone(snapshot, options.settings(conf), whole=True)
    ends: dict[str, headroom.ZoneUsage] = {}
    for one in found:
        before = ends.get(one.zone)
        if one.capacity and (before is None or _left(one) < _left(before)):
            ends[one.zone] = one
    rows = [
        {
            'zone': one.zone,
            'resource': one.resource_class,
            'capacity': round(one.capacity),
            'used': round(one.used),
            'out': max(round(one.capacity - one.used - one.free), 0),
            'free': round(one.free),
            'full': _percent(one.capacity - one.free, one.capacity),
            'ends_first': ends.get(one.zone) is one,
        }
        for one in found
        if args.zone is None or headroom.is_in(one.zone, args.zone)
    ]
    _check_zone(args, conf, snapshot, rows)
    rows.sort(key=lambda row: str(row['zone']))
    columns = [
        'zone', 'resource', 'capacity', 'used', 'out', 'free', 'full',
        'ends_first',
    ]  # fmt: skip
    output.listing(rows, columns, args)


def _check_zone(
    args: Any, conf: Any, snapshot: Snapshot, rows: Sequence[Any]
) -> None:
    """Say so where nothing is printed since there is no such zone."""
    if args.zone and not rows:
        known = zone_names(
            snapshot.hosts.topology.aggregates.values(),
            conf.default_availability_zone,
        )
        output.nothing_matches('--zone', args.zone, known)


def _left(one: headroom.ZoneUsage) -> float:
    return one.free / one.capacity


def _percent(part: float, whole: float) -> float | None:
    return round(part / whole * 100, 1) if whole > 0 else None


def _fits(args: Any, conf: Any) -> None:
    request = _request(args.flavor).with_ids()
    if args.zone:
        request.availability_zone = args.zone
    snapshot = _snapshot(conf)
    found = headroom.fits(
        plan(conf).hosts,
        snapshot.hosts,
        request,
        conf.default_availability_zone,
        args.by == 'host',
    )
    rows = [
        {
            args.by: one.place,
            'hosts': one.hosts,
            'instances': one.instances,
            'ends_first': one.ends,
        }
        for one in found
    ]
    _check_zone(args, conf, snapshot, rows)
    columns = [args.by, 'hosts', 'instances', 'ends_first']
    output.listing(rows, columns, args)


def _request(text: str) -> Request:
    """Return a request for one instance of a flavor.

    :param text: a file with a flavor or with a request, or ``vcpus=2,...``
    :raises InvalidRequest: a file that is neither
    :raises WrongUsage: it is neither a file nor a flavor
    """
    if '=' not in text or pathlib.Path(text).exists():
        document = read(text, errors.InvalidRequest)
        if isinstance(document, dict) and 'flavor' not in document:
            document = {'flavor': document}
        return documents.request(document)
    given: dict[str, Any] = dict(pairs(text.split(',')))
    flavor: dict[str, Any] = {}
    specs: dict[str, str] = {}
    for key, value in given.items():
        if key in _NUMBERS:
            flavor[key] = int(value) if value.isdecimal() else value
        else:
            specs[key] = value
    document = {'flavor': {**flavor, 'extra_specs': specs}}
    try:
        return documents.request(document)
    except errors.InvalidRequest as fault:
        raise WrongUsage(f'argument --flavor: {fault.args[0]}') from None


def _snapshot(conf: Any) -> Snapshot:
    with open_store(conf) as store, store.reading() as conn:
        return load_snapshot(conn)


def drain(args: Any, conf: Any) -> int:
    """Print where each instance of a host could go; return 1 if one cannot.

    :raises HostNotFound: there is no such host
    """
    with open_store(conf) as store, store.reading() as conn:
        snapshot = load_snapshot(conn)
        requests = residents.requests(conn, args.host)
    if not len(snapshot.hosts.rows_of_host(args.host)):
        raise errors.HostNotFound(f'There is no host {args.host}')
    moves = headroom.drain(
        plan(conf).hosts,
        snapshot.hosts,
        requests,
        conf.default_availability_zone,
    )
    rows = [_move(one) for one in moves]
    columns = [
        'instance', 'project_id', 'vcpus', 'memory_mb', 'disk_gb', 'to',
        'zone', 'reason',
    ]  # fmt: skip
    output.listing(rows, columns, args, ['node'])
    return 1 if any(row['to'] is None for row in rows) else 0


def _move(one: headroom.Move) -> dict[str, Any]:
    taken = one.request.resources
    return {
        'instance': one.request.instance_uuids[0],
        'project_id': one.request.project_id,
        'vcpus': taken.get('VCPU'),
        'memory_mb': taken.get('MEMORY_MB'),
        'disk_gb': taken.get('DISK_GB'),
        'to': one.host,
        'node': one.node,
        'zone': one.zone,
        'reason': one.reason or None,
    }
