"""Lists and small changes: pools, hosts, aggregates, groups, decisions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.cmd import output
from scheduler_service.cmd.commands import (
    default_ratios,
    read,
    timestamp,
    write,
)
from scheduler_service.cmd.parser_parts import WrongUsage
from scheduler_service.model import (
    Aggregate,
    Pool,
    ServerGroup,
    documents,
)
from scheduler_service.store.reading import host_listing, loading
from scheduler_service.store.records import refused_reports
from scheduler_service.store.writing import aggregates as aggregate_rows
from scheduler_service.store.writing import hosts as host_rows
from scheduler_service.store.writing import pools as pool_rows
from scheduler_service.store.writing import server_groups
from scheduler_service.store.writing import zones as zone_rows


def pairs(given: Sequence[str] | None) -> dict[str, str]:
    """Return KEY=VALUE arguments as a dict.

    :raises WrongUsage: one has no key or no equals sign
    """
    values = {}
    for argument in given or ():
        key, sign, value = argument.partition('=')
        if not sign or not key:
            raise WrongUsage(f'expected KEY=VALUE, got {argument}')
        values[key] = value
    return values


def _or_none(given: Sequence[str]) -> dict[str, str | None]:
    """Return KEY=VALUE arguments; ``KEY=`` gives None, which removes it."""
    return {key: value or None for key, value in pairs(given).items()}


def pools(args: Any, conf: Any) -> None:
    """List pools."""
    rows = _rows(read(conf, loading.pools).values())
    output.listing(rows, ['name', 'id', 'attributes'], args, ['description'])


def create_pool(args: Any, conf: Any) -> None:
    """Add a pool."""
    pool = documents.parse(
        {
            'id': args.id or str(uuid.uuid4()),
            'name': args.name,
            'attributes': pairs(args.attribute),
        },
        Pool,
        errors.InvalidInventory,
    )
    write(
        conf,
        lambda writer: pool_rows.create(writer, pool),
    )
    output.say(output.cell(f'Pool {pool.name} has the id {pool.id}.'))


def set_pool(args: Any, conf: Any) -> None:
    """Set or remove attributes of a pool."""
    changes = _or_none(args.attribute)
    write(
        conf,
        lambda writer: pool_rows.set_attributes(writer, args.pool, changes),
    )


def delete_pool(args: Any, conf: Any) -> None:
    """Remove a pool."""
    write(conf, lambda writer: pool_rows.delete_named(writer, args.pool))


def hosts(args: Any, conf: Any) -> None:
    """List hosts."""
    wanted = host_listing.Filter(
        args.zone, args.aggregate, args.state, args.status, args.name
    )
    default = conf.default_availability_zone

    def look(conn: Any) -> tuple[list[dict[str, Any]], list[Aggregate]]:
        ratios = default_ratios(conf)
        found = list(host_listing.rows(conn, wanted, ratios, default))
        return found, [] if found else loading.aggregates(conn)

    rows, known = read(conf, look)
    if args.zone and not rows:
        output.nothing_matches('--zone', args.zone, zone_names(known, default))
    if args.aggregate and not rows:
        output.nothing_matches(
            '--aggregate',
            args.aggregate,
            [name for one in known for name in (one.name, str(one.id))],
        )
    columns = [
        'host', 'node', 'zone', 'status', 'state', 'vcpus', 'memory_mb',
        'local_gb', 'used', 'instances', 'disabled_reason',
    ]  # fmt: skip
    output.listing(rows, columns, args, ['aggregates'])


def zone_names(aggregates: Iterable[Aggregate], default: str) -> set[str]:
    """Return the names of all availability zones.

    :param default: of hosts whose aggregates have none
    """
    return {default, *(zone for one in aggregates for zone in one.zones)}


def show_host(args: Any, conf: Any) -> None:
    """Print the nodes of a host as documents, and its refused reports.

    :raises HostNotFound: there is no such host
    """
    stored, refusals = read(
        conf,
        lambda conn: (
            loading.hosts(conn).values(),
            refused_reports.of_host(conn, args.host),
        ),
    )
    nodes = [
        msgspec.to_builtins(host) for host in stored if host.host == args.host
    ]
    refused = None if refusals is None else _refused(refusals)
    if not nodes:
        told = '' if refused is None else f'; a report was refused: {refused}'
        raise errors.HostNotFound(f'There is no host {args.host}{told}')
    if refused is not None:
        nodes = [{**node, 'refused_reports': refused} for node in nodes]
    form = 'yaml' if args.format == 'table' else args.format
    output.document(nodes, form)


def _refused(refusals: refused_reports.StoredRefusals) -> dict[str, Any]:
    return {
        'count': refusals.refused,
        'last_at': timestamp(refusals.refused_at),
        'last_reason': refusals.reason,
    }


def enable_host(args: Any, conf: Any) -> None:
    """Enable a host."""
    write(conf, lambda w: host_rows.set_status(w, args.host, True))


def disable_host(args: Any, conf: Any) -> None:
    """Disable a host: it is not selected any more."""
    write(
        conf,
        lambda writer: host_rows.set_status(
            writer, args.host, False, args.reason
        ),
    )


def remove_host(args: Any, conf: Any) -> None:
    """Remove a host, and say which aggregates it was in."""
    left = write(
        conf, lambda writer: host_rows.remove_service_host(writer, args.host)
    )
    if left:
        names = ', '.join(f'{one.name} ({one.id})' for one in left)
        output.say(f'Host {args.host} is removed from aggregates {names}.')


def aggregates(args: Any, conf: Any) -> None:
    """List aggregates."""
    rows = _rows(read(conf, loading.aggregates))
    columns = ['id', 'name', 'hosts', 'metadata', 'uuid']
    output.listing(rows, columns, args)


def create_aggregate(args: Any, conf: Any) -> None:
    """Add an aggregate."""
    metadata = pairs(args.property)
    if args.zone:
        metadata['availability_zone'] = args.zone
    aggregate = write(
        conf,
        lambda writer: aggregate_rows.create(writer, args.name, metadata),
    )
    output.say(
        output.cell(f'Aggregate {aggregate.name} has the id {aggregate.id}.')
    )


def set_aggregate(args: Any, conf: Any) -> None:
    """Set or remove metadata of an aggregate."""
    changes = _or_none(args.property)
    _change(
        args,
        conf,
        lambda aggregate: aggregate_rows.set_metadata(aggregate, changes),
    )


def add_to_aggregate(args: Any, conf: Any) -> None:
    """Add hosts to an aggregate."""
    _change(
        args,
        conf,
        lambda aggregate: msgspec.structs.replace(
            aggregate, hosts=sorted({*aggregate.hosts, *args.host})
        ),
    )


def remove_from_aggregate(args: Any, conf: Any) -> None:
    """Remove hosts from an aggregate."""
    _change(
        args,
        conf,
        lambda aggregate: msgspec.structs.replace(
            aggregate, hosts=sorted({*aggregate.hosts} - {*args.host})
        ),
    )


def _change(
    args: Any, conf: Any, change: Callable[[Aggregate], Aggregate]
) -> None:
    write(
        conf,
        lambda writer: aggregate_rows.change(writer, args.aggregate, change),
    )


def delete_aggregate(args: Any, conf: Any) -> None:
    """Remove an aggregate."""
    write(conf, lambda w: aggregate_rows.delete_named(w, args.aggregate))


def groups(args: Any, conf: Any) -> None:
    """List server groups."""
    rows = _rows(read(conf, loading.groups).values())
    columns = ['name', 'uuid', 'project_id', 'policy', 'rules', 'members']
    output.listing(rows, columns, args)


def create_group(args: Any, conf: Any) -> None:
    """Add a server group."""
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
    output.say(
        output.cell(f'Server group {group.name} has the uuid {group.uuid}.')
    )


def delete_group(args: Any, conf: Any) -> None:
    """Remove a server group."""
    write(conf, lambda writer: server_groups.delete_named(writer, args.uuid))


def zones(args: Any, conf: Any) -> None:
    """List zones with their pools."""
    rows = [zone._asdict() for zone in read(conf, zone_rows.listing)]
    columns = ['name', 'id', 'pool_id', 'project_id']
    output.listing(rows, columns, args, ['request_id'])


def _rows(structs: Iterable[Any]) -> list[dict[str, Any]]:
    """Return typed documents as rows of a table."""
    return [msgspec.structs.asdict(struct) for struct in structs]
