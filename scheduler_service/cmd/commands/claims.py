"""``scheduler-manage claim`` and ``audit``: claims and their allocations."""

from __future__ import annotations

from typing import Any

import msgspec

from scheduler_service.cmd import output
from scheduler_service.cmd.commands import (
    default_ratios,
    open_store,
    read,
    timestamp,
    write,
)
from scheduler_service.model.inventory import dashed
from scheduler_service.store.claims import claim_queries, lifecycle, outcomes
from scheduler_service.store.reading import loading
from scheduler_service.store.records import audit as auditing

_COLUMNS = [
    'uuid', 'state', 'host', 'node', 'project_id', 'request_id', 'created_at',
    'age_s',
]  # fmt: skip


def listing(args: Any, conf: Any) -> None:
    """List claims."""

    def look(conn: Any) -> list[dict[str, Any]]:
        found = claim_queries.listing(
            conn,
            args.host,
            args.state,
            # Another order than by time has to look at all of them.
            None if args.sort else args.limit or None,
            args.project,
            args.older_than,
        )
        if args.host and not found:
            known = loading.host_names(conn)
            output.nothing_matches('--host', args.host, known)
        return found

    rows = read(conf, look)
    for row in rows:
        row['created_at'] = timestamp(row['created_at'])
    output.listing(rows, _COLUMNS, args)


def show(args: Any, conf: Any) -> None:
    """Print the claims of an instance with their allocations."""
    claim = read(
        conf, lambda conn: claim_queries.show(conn, dashed(args.instance))
    )
    if claim['created_at'] is not None:
        claim['created_at'] = timestamp(claim['created_at'])
    form = 'yaml' if args.format == 'table' else args.format
    output.document(claim, form)


def release(args: Any, conf: Any) -> int:
    """Release claims; return 1 if there was none."""

    def work(writer: Any, uuids: list[str]) -> list[str]:
        return lifecycle.cancel(writer, _for_all(uuids))

    return _change(args, conf, work, 'released')


def confirm(args: Any, conf: Any) -> int:
    """Confirm claims and moves; return 1 if there was nothing to confirm."""

    def work(writer: Any, uuids: list[str]) -> list[str]:
        return lifecycle.confirm(writer, dict.fromkeys(uuids))

    return _change(args, conf, work, 'confirmed')


def drop_move(args: Any, conf: Any) -> int:
    """Release second claims; return 1 if there was none."""

    def work(writer: Any, uuids: list[str]) -> list[str]:
        return lifecycle.cancel_moves(writer, _for_all(uuids))

    return _change(args, conf, work, 'stays where it is')


def _for_all(uuids: list[str]) -> dict[str, outcomes.ReleaseRequest]:
    """Return that an operator asks for a change of instances."""
    return dict.fromkeys(uuids, outcomes.ReleaseRequest())


def _change(args: Any, conf: Any, change: Any, outcome: str) -> int:
    """Change claims; print the outcome for each instance."""
    uuids = [dashed(uuid) for uuid in args.instance]
    changed = write(conf, lambda writer: change(writer, uuids))
    for uuid in uuids:
        done = outcome if uuid in changed else 'nothing to do'
        output.say(output.cell(f'{uuid} {done}'))
    return 0 if changed else 1


def audit(args: Any, conf: Any) -> int:
    """Compare use with allocations; return 1 if differences remain."""
    fallback = default_ratios(conf)
    with open_store(conf) as store:
        fixed = store.write(auditing.fix) if args.fix else 0
        with store.reading() as conn:
            report = auditing.audit(conn, fallback)
    if args.format != 'table':
        output.document(
            {'mended': fixed, **msgspec.to_builtins(report)}, args.format
        )
        return 1 if report.findings else 0
    if fixed:
        print(f'{fixed} rows fixed')
    for finding in report.findings:
        place = ' '.join(
            part
            for part in (
                finding.host,
                finding.resource_class,
                finding.consumer,
            )
            if part
        )
        print(output.cell(f'{finding.kind}: {place}: {finding.text}'))
    print(
        f'{len(report.findings)} differences in {report.inventories} '
        f'inventories, {report.allocations} allocations, '
        f'{report.claims} claims'
    )
    return 1 if report.findings else 0
