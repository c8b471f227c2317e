"""``scheduler-manage claim`` and ``audit``: what was promised to whom."""

from __future__ import annotations

from typing import Any

import msgspec

from scheduler_service import conf as options
from scheduler_service.cmd import output
from scheduler_service.cmd.commands import opened, read, when, write
from scheduler_service.model import STANDARD_CLASSES
from scheduler_service.model.inventory import dashed
from scheduler_service.store.claims import claim_queries, lifecycle
from scheduler_service.store.records import audit as auditing

_COLUMNS = ['uuid', 'state', 'host', 'node', 'request_id', 'created_at']


def listing(args: Any, conf: Any) -> None:
    """List claims."""
    rows = read(
        conf,
        lambda conn: claim_queries.listing(
            conn, args.host, args.state, args.limit or None
        ),
    )
    for row in rows:
        row['created_at'] = when(row['created_at'])
    output.listing(rows, _COLUMNS, args.format)


def show(args: Any, conf: Any) -> None:
    """Print all about the claims of an instance."""
    found = read(
        conf, lambda conn: claim_queries.show(conn, dashed(args.instance))
    )
    if found['created_at'] is not None:
        found['created_at'] = when(found['created_at'])
    form = 'yaml' if args.format == 'table' else args.format
    output.document(found, form)


def release(args: Any, conf: Any) -> int:
    """Give back claims; 1 where none was held."""
    return _do(args, conf, lifecycle.release, 'released')


def confirm(args: Any, conf: Any) -> int:
    """Confirm claims and moves; 1 where there was nothing to confirm."""

    def work(writer: Any, uuids: list[str]) -> list[str]:
        where = lifecycle.claimed_hosts(writer.conn, uuids)
        return lifecycle.confirm(writer, where)

    return _do(args, conf, work, 'confirmed')


def drop_move(args: Any, conf: Any) -> int:
    """Give back second claims; 1 where none was held."""
    return _do(args, conf, lifecycle.drop_moves, 'stays where it is')


def _do(args: Any, conf: Any, verb: Any, told: str) -> int:
    uuids = [dashed(one) for one in args.instance]
    done = write(conf, lambda writer: verb(writer, uuids))
    for uuid in uuids:
        print(f'{uuid} {told if uuid in done else "nothing to do"}')
    return 0 if done else 1


def audit(args: Any, conf: Any) -> int:
    """Hold use against allocations; 1 where something differs still."""
    settings = options.settings(conf)
    fallback = {
        name: settings.default_ratio(name) for name in STANDARD_CLASSES
    }
    with opened(conf) as store:
        mended = store.write(auditing.fix) if args.fix else 0
        with store.reading() as conn:
            found = auditing.audit(conn, fallback)
    if args.format != 'table':
        output.document(
            {'mended': mended, **msgspec.to_builtins(found)}, args.format
        )
        return 1 if found.findings else 0
    if mended:
        print(f'{mended} rows mended')
    for one in found.findings:
        place = ' '.join(
            part for part in (one.host, one.resource_class, one.consumer)
            if part
        )  # fmt: skip
        print(f'{one.kind}: {place}: {one.text}')
    print(
        f'{len(found.findings)} differences in {found.inventories} '
        f'inventories, {found.allocations} allocations, {found.claims} claims'
    )
    return 1 if found.findings else 0
