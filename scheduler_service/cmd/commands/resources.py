"""Lists, and the verbs that an operator reaches for without a file."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.cmd import output, reasons
from scheduler_service.cmd.commands import read, when, write
from scheduler_service.model import Aggregate, Pool, ServerGroup, documents
from scheduler_service.store.reading import loading
from scheduler_service.store.records import decisions as kept
from scheduler_service.store.writing import admin
from scheduler_service.store.writing import zones as zone_rows


def pairs(given: Sequence[str] | None) -> dict[str, str]:
    """Return KEY=VALUE arguments as a dict.

    :raises InvalidRequest: one has no equals sign
    """
    found = {}
    for one in given or ():
        key, sign, value = one.partition('=')
        if not sign or not key:
            raise errors.InvalidRequest(f'expected KEY=VALUE, got {one}')
        found[key] = value
    return found


def _or_none(given: Sequence[str]) -> dict[str, str | None]:
    """Return KEY=VALUE arguments; ``KEY=`` is None, to be removed."""
    return {key: value or None for key, value in pairs(given).items()}


def pools(args: Any, conf: Any) -> None:
    """List pools."""
    found = read(conf, loading.pools).values()
    output.listing(_rows(found), ['name', 'id', 'attributes'], args.format)


def create_pool(args: Any, conf: Any) -> None:
    """Add a pool."""
    made = documents.parse_as(
        {
            'id': args.id or str(uuid.uuid4()),
            'name': args.name,
            'attributes': pairs(args.attribute),
        },
        Pool,
    )
    write(
        conf,
        lambda writer: admin.create_pool(
            writer, made.id, made.name, made.attributes
        ),
    )
    print(f'Pool {made.name} has the id {made.id}.')


def set_pool(args: Any, conf: Any) -> None:
    """Set or remove attributes of a pool."""
    wanted = _or_none(args.attribute)
    write(conf, lambda writer: admin.set_pool(writer, args.pool, wanted))


def delete_pool(args: Any, conf: Any) -> None:
    """Remove a pool."""
    write(conf, lambda writer: admin.delete_pool(writer, args.pool))


def hosts(args: Any, conf: Any) -> None:
    """List hosts."""
    found = read(conf, loading.hosts).values()
    rows = [
        {
            'host': one.host,
            'node': one.hypervisor_hostname,
            'status': one.status,
            'state': one.state,
            'vcpus': f'{one.vcpus_used}/{one.vcpus}',
            'memory_mb': f'{one.memory_mb_used}/{one.memory_mb}',
            'local_gb': f'{one.local_gb_used}/{one.local_gb}',
            'instances': one.num_instances,
            'disabled_reason': one.disabled_reason,
        }
        for one in found
    ]
    columns = [
        'host', 'node', 'status', 'state', 'vcpus', 'memory_mb', 'local_gb',
        'instances', 'disabled_reason',
    ]  # fmt: skip
    output.listing(rows, columns, args.format)


def show_host(args: Any, conf: Any) -> None:
    """Print all about a host."""
    found = [
        one
        for one in read(conf, loading.hosts).values()
        if one.host == args.host
    ]
    if not found:
        raise errors.HostNotFound(f'There is no host {args.host}')
    form = 'yaml' if args.format == 'table' else args.format
    output.document(found, form)


def enable_host(args: Any, conf: Any) -> None:
    """Let a host be chosen."""
    write(conf, lambda w: admin.set_host_status(w, args.host, True))


def disable_host(args: Any, conf: Any) -> None:
    """Keep a host from being chosen."""
    write(
        conf,
        lambda writer: admin.set_host_status(
            writer, args.host, False, args.reason
        ),
    )


def remove_host(args: Any, conf: Any) -> None:
    """Forget a host."""
    write(conf, lambda writer: admin.remove_host(writer, args.host))


def aggregates(args: Any, conf: Any) -> None:
    """List aggregates."""
    found = read(conf, loading.aggregates)
    columns = ['id', 'name', 'hosts', 'metadata', 'uuid']
    output.listing(_rows(found), columns, args.format)


def create_aggregate(args: Any, conf: Any) -> None:
    """Add an aggregate."""
    metadata = pairs(args.property)
    if args.zone:
        metadata['availability_zone'] = args.zone
    made = write(
        conf, lambda w: admin.create_aggregate(w, args.name, metadata)
    )
    print(f'Aggregate {made.name} has the id {made.id}.')


def set_aggregate(args: Any, conf: Any) -> None:
    """Set or remove metadata of an aggregate."""
    wanted = _or_none(args.property)
    _change(args, conf, lambda one: admin.set_metadata(one, wanted))


def add_host(args: Any, conf: Any) -> None:
    """Put hosts into an aggregate."""
    _change(
        args,
        conf,
        lambda one: msgspec.structs.replace(
            one, hosts=sorted({*one.hosts, *args.host})
        ),
    )


def drop_host(args: Any, conf: Any) -> None:
    """Take hosts out of an aggregate."""
    _change(
        args,
        conf,
        lambda one: msgspec.structs.replace(
            one, hosts=sorted({*one.hosts} - {*args.host})
        ),
    )


def _change(
    args: Any, conf: Any, change: Callable[[Aggregate], Aggregate]
) -> None:
    write(
        conf,
        lambda writer: admin.change_aggregate(writer, args.aggregate, change),
    )


def delete_aggregate(args: Any, conf: Any) -> None:
    """Remove an aggregate."""
    write(conf, lambda w: admin.delete_aggregate(w, args.aggregate))


def groups(args: Any, conf: Any) -> None:
    """List server groups."""
    found = read(conf, loading.groups).values()
    columns = ['name', 'uuid', 'policy', 'rules', 'members']
    output.listing(_rows(found), columns, args.format)


def create_group(args: Any, conf: Any) -> None:
    """Add a server group."""
    most = args.max_server_per_host
    made = documents.parse_as(
        {
            'uuid': args.uuid or str(uuid.uuid4()),
            'name': args.name,
            'policy': args.policy,
            'rules': {} if most is None else {'max_server_per_host': most},
            'members': args.member,
        },
        ServerGroup,
    )
    write(conf, lambda writer: admin.create_group(writer, made))
    print(f'Server group {made.name} has the uuid {made.uuid}.')


def delete_group(args: Any, conf: Any) -> None:
    """Remove a server group."""
    write(conf, lambda writer: admin.delete_group(writer, args.uuid))


def zones(args: Any, conf: Any) -> None:
    """List zones that have a pool."""
    rows = [one._asdict() for one in read(conf, zone_rows.listing)]
    output.listing(rows, ['name', 'id', 'pool_id', 'project_id'], args.format)


def decisions(args: Any, conf: Any) -> None:
    """List the newest decisions."""
    rows = read(conf, lambda conn: kept.listing(conn, args.limit))
    for row in rows:
        row['created_at'] = when(row['created_at'])
    columns = ['created_at', 'request_id', 'kind', 'outcome']
    output.listing(rows, columns, args.format)


def show_decision(args: Any, conf: Any) -> None:
    """Print decisions of a request with their reasons."""
    found = read(conf, lambda conn: kept.show(conn, args.request_id))
    for one in found:
        one['created_at'] = when(one['created_at'])
    if args.format != 'table':
        output.document(found, args.format)
        return
    for one in found:
        _decision(one)


def _decision(one: dict[str, Any]) -> None:
    output.console().print(
        f'{one["created_at"]}  {one["kind"]}: {one["outcome"]}'
    )
    if one.get('placements'):
        reasons.hosts(one)
    if one.get('pool_id'):
        reasons.pool(one)
    reasons.why(one.get('explanation'))
    if one.get('error'):
        output.console().print(output.cell(one['error']['message']))
        reasons.why(one['error']['facts'])


def _rows(found: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [msgspec.structs.asdict(o) for o in found]
    return rows
