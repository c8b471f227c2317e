"""``scheduler-manage host``, ``pool``, ``aggregate`` and the like."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from sqlalchemy.engine import Connection

from scheduler_service import conf as options
from scheduler_service import errors
from scheduler_service.cmd import output
from scheduler_service.cmd.connections import read, write
from scheduler_service.cmd.program import WrongUsage
from scheduler_service.model import (
    STANDARD_CLASSES,
    Aggregate,
    Pool,
    ServerGroup,
    documents,
)
from scheduler_service.planning import host_listing
from scheduler_service.store.reading import loading
from scheduler_service.store.reading.snapshot import load_hosts
from scheduler_service.store.records import host_reports
from scheduler_service.store.writing import aggregates as aggregate_rows
from scheduler_service.store.writing import hosts as host_rows
from scheduler_service.store.writing import pools as pool_rows
from scheduler_service.store.writing import server_groups
from scheduler_service.store.writing import zones as zone_rows


def default_ratios(conf: Any) -> dict[str, float]:
    """Return the allocation ratios of hosts that have none, by class."""
    settings = options.settings(conf)
    return {name: settings.default_ratio(name) for name in STANDARD_CLASSES}


def _changes(pairs: Iterable[tuple[str, str]]) -> dict[str, str | None]:
    """Return new values by key; an empty value is None, for removal."""
    return {key: value or None for key, value in pairs}


def pools(args: Any, conf: Any) -> output.Listing:
    rows = _rows(read(conf, loading.pools).values())
    return output.Listing(rows, ['name', 'id', 'attributes'], ['description'])


def create_pool(args: Any, conf: Any) -> None:
    pool = documents.parse(
        {
            'id': args.id or str(uuid.uuid4()),
            'name': args.name,
            'attributes': dict(args.attribute),
        },
        Pool,
        errors.InvalidInventory,
    )
    write(conf, lambda writer: pool_rows.create(writer, pool))
    output.say(f'Pool {pool.name} has the id {pool.id}.')


def set_pool(args: Any, conf: Any) -> None:
    changes = _changes(args.attribute)
    write(conf, lambda w: pool_rows.set_attributes(w, args.pool, changes))


def delete_pool(args: Any, conf: Any) -> None:
    write(conf, lambda writer: pool_rows.delete_named(writer, args.pool))


def hosts(args: Any, conf: Any) -> output.Listing:
    criteria = host_listing.HostCriteria(
        args.zone, args.aggregate, args.state, args.status, args.name
    )
    settings = options.settings(conf)
    table = read(conf, load_hosts)
    rows = list(host_listing.rows(table, criteria, settings))
    if not rows:
        output.remark(*host_listing.remarks(table, criteria, settings, '--'))
    columns = [
        'host', 'node', 'zone', 'status', 'state', 'vcpus_used', 'vcpus',
        'memory_mb_used', 'memory_mb', 'local_gb_used', 'local_gb', 'used',
        'instances', 'disabled_reason',
    ]  # fmt: skip
    more = ['vcpus_capacity', 'memory_mb_capacity', 'local_gb_capacity']
    return output.Listing(rows, columns, [*more, 'aggregates'])


def show_host(args: Any, conf: Any) -> None:
    """Print the nodes of a host: their place, what is left, and claims.

    :raises HostNotFound: the host does not exist
    """

    def query(conn: Connection) -> list[dict[str, Any]]:
        nodes = host_reports.documents_of(conn, args.host)
        return host_listing.placed(
            load_hosts(conn), options.settings(conf), nodes
        )

    output.document(read(conf, query), args.format)


def enable_host(args: Any, conf: Any) -> None:
    _set_status(args.host, conf, 'enabled')


def disable_host(args: Any, conf: Any) -> None:
    _set_status(args.host, conf, 'disabled', args.reason)


def _set_status(
    host: str, conf: Any, status: str, reason: str | None = None
) -> None:
    """Enable or disable a host; print what it is now, and what it was."""
    on = status == 'enabled'
    before = write(conf, lambda w: host_rows.set_status(w, host, on, reason))
    now, *former = (
        f'{status} ({reason})' if reason else status
        for status, reason in ((status, reason), *before)
    )
    output.say(f'Host {host} is {now}; it was {" and ".join({*former})}')


def remove_host(args: Any, conf: Any) -> None:
    """Remove a host, and print the aggregates that it was in."""
    former = write(conf, lambda w: host_rows.remove_service_host(w, args.host))
    if former:
        names = ', '.join(
            f'{aggregate.name} ({aggregate.id})' for aggregate in former
        )
        output.say(f'Host {args.host} is removed from aggregates {names}.')


def aggregates(args: Any, conf: Any) -> output.Listing:
    rows = _rows(read(conf, loading.aggregates))
    for row in rows:
        row['resources'] = msgspec.to_builtins(row['resources'])
    columns = ['id', 'name', 'hosts', 'metadata', 'uuid']
    return output.Listing(rows, columns, ['resources'])


def create_aggregate(args: Any, conf: Any) -> None:
    metadata = dict(args.property)
    if args.zone:
        metadata['availability_zone'] = args.zone
    aggregate = write(
        conf, lambda w: aggregate_rows.create(w, args.name, metadata)
    )
    output.say(f'Aggregate {aggregate.name} has the id {aggregate.id}.')


def set_aggregate(args: Any, conf: Any) -> None:
    changes = _changes(args.property)
    _change(args, conf, lambda row: aggregate_rows.set_metadata(row, changes))


def add_to_aggregate(args: Any, conf: Any) -> None:
    _change_hosts(args, conf, set.union)


def remove_from_aggregate(args: Any, conf: Any) -> None:
    _change_hosts(args, conf, set.difference)


def _change_hosts(
    args: Any, conf: Any, change: Callable[[set[str], list[str]], set[str]]
) -> None:
    def changed(aggregate: Aggregate) -> Aggregate:
        hosts = sorted(change(set(aggregate.hosts), args.host))
        return msgspec.structs.replace(aggregate, hosts=hosts)

    _change(args, conf, changed)


def _change(
    args: Any, conf: Any, change: Callable[[Aggregate], Aggregate]
) -> None:
    write(conf, lambda w: aggregate_rows.change(w, args.aggregate, change))


def delete_aggregate(args: Any, conf: Any) -> None:
    write(conf, lambda w: aggregate_rows.delete_named(w, args.aggregate))


def groups(args: Any, conf: Any) -> output.Listing:
    rows = _rows(read(conf, loading.groups).values())
    columns = ['name', 'uuid', 'project_id', 'policy', 'rules', 'members']
    return output.Listing(rows, columns)


def create_group(args: Any, conf: Any) -> None:
    limit = args.max_server_per_host
    group = documents.parse(
        {
            'uuid': args.uuid or str(uuid.uuid4()),
            'name': args.name,
            'project_id': args.project,
            'policy': args.policy,
            'rules': {} if limit is None else {'max_server_per_host': limit},
            'members': args.member,
        },
        ServerGroup,
        errors.InvalidInventory,
    )
    if group.rules and group.policy != 'anti-affinity':
        raise WrongUsage(
            'argument --max-server-per-host: only the policy anti-affinity '
            f'has it, got {group.policy}'
        )
    write(conf, lambda writer: server_groups.create(writer, group))
    output.say(f'Server group {group.name} has the uuid {group.uuid}.')


def delete_group(args: Any, conf: Any) -> None:
    write(conf, lambda writer: server_groups.delete_named(writer, args.uuid))


def zones(args: Any, conf: Any) -> output.Listing:
    rows = [zone._asdict() for zone in read(conf, zone_rows.listing)]
    if not rows:
        output.remark(
            'No DNS zone has a pool; "scheduler-manage capacity" lists '
            'availability zones'
        )
    columns = ['name', 'id', 'pool_id', 'project_id']
    return output.Listing(rows, columns, ['request_id'])


def _rows(structs: Iterable[Any]) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(struct) for struct in structs]
