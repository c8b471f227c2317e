"""``scheduler-manage decision``, ``claim``, ``audit`` and ``message``.

Records of requests: decisions with their reasons, claims with their
allocations, and messages that no daemon could process.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from scheduler_service import errors, moments, plugins, texts
from scheduler_service.cmd import adapters, output
from scheduler_service.cmd.commands.resources import default_ratios
from scheduler_service.cmd.connections import call, open_store, read, write
from scheduler_service.cmd.program import WrongUsage
from scheduler_service.model.inventory import dashed
from scheduler_service.store.claims import claim_queries, lifecycle, outcomes
from scheduler_service.store.reading import loading
from scheduler_service.store.records import audit as auditing
from scheduler_service.store.records import decisions, quarantine

_DECISION = [
    'created_at', 'request_id', 'kind', 'outcome', 'project_id', 'filter',
    'hosts', 'times',
]  # fmt: skip
# By which decisions are counted.
_COUNTED = 'kind', 'outcome', 'filter', 'project_id', 'host'
# How often new decisions are looked for, in seconds.
_FOLLOW_S = 1.0


def _query_limit(args: Any) -> int | None:
    """Return how many rows are read; None: all.

    A row more than is printed shows that there are more. Any order but that by
    time needs all rows.
    """
    return None if args.sort_columns or not args.limit else args.limit + 1


def decision_list(args: Any, conf: Any) -> output.Listing:
    """List the newest decisions, or count them, or follow new ones."""
    criteria = decisions.DecisionFilter(
        args.since, args.until, args.outcome, args.filter, args.project,
        args.host, args.pod, args.instance and dashed(args.instance),
        args.request,
    )  # fmt: skip
    if args.by:
        return _count_decisions(args, conf, criteria)
    if args.follow:
        return _follow_decisions(args, conf, criteria)
    total: int | str | None = None

    def query(conn: Any) -> list[decisions.DecisionSummary]:
        nonlocal total
        rows = decisions.search(conn, criteria, _query_limit(args))
        if not args.sort_columns and len(rows) > args.limit > 0:
            total = decisions.count(conn, criteria)
        if not rows:
            for sentence in decisions.remarks(conn, criteria, '--'):
                output.remark(sentence)
        return rows

    rows = [row.plain() for row in read(conf, query)]
    return output.Listing(rows, _DECISION, total=total)


def _count_decisions(
    args: Any, conf: Any, criteria: decisions.DecisionFilter
) -> output.Listing:
    columns = args.by.split(',')
    unknown = [name for name in columns if name not in _COUNTED]
    if unknown:
        raise WrongUsage(
            f'argument --by: {unknown[0]}: not one of {", ".join(_COUNTED)}'
        )
    counts: Counter[tuple[str, ...]] = Counter()
    for row in read(conf, lambda conn: decisions.search(conn, criteria)):
        values = {**row._asdict(), 'host': ', '.join(row.hosts)}
        counts[tuple(values[name] or '' for name in columns)] += 1
    rows = [
        {**dict(zip(columns, values, strict=True)), 'decisions': number}
        for values, number in counts.most_common()
    ]
    return output.Listing(rows, [*columns, 'decisions'])


def _follow_decisions(
    args: Any, conf: Any, criteria: decisions.DecisionFilter
) -> NoReturn:
    if args.formatter not in ('table', 'value') or args.sort_columns:
        raise WrongUsage('argument --follow: prints lines in order of time')
    shown = output.check(args, _DECISION)[0] or _DECISION
    last = 0
    with open_store(conf) as store:
        while True:
            with store.reading() as conn:
                rows = decisions.search(
                    conn, criteria, None if last else args.limit, last
                )
            for row in reversed(rows):
                last = row.id
                values = row.plain()
                output.write(['  '.join(texts.cell(values[name]) or '-'
                                        for name in shown)])  # fmt: skip
            sys.stdout.flush()
            time.sleep(_FOLLOW_S)


def decision_show(args: Any, conf: Any) -> None:
    rows = read(conf, lambda conn: decisions.show(conn, args.request_id))
    if args.format != 'table':
        output.document(rows, args.format)
        return
    for row in rows:
        output.decision(row)


def claim_list(args: Any, conf: Any) -> output.Listing:
    def query(conn: Any) -> list[dict[str, Any]]:
        rows = claim_queries.listing(
            conn, args.host, args.state, _query_limit(args), args.project,
            args.older_than,
        )  # fmt: skip
        if args.host and not rows:
            names = loading.host_names(conn)
            output.nothing_matches('--host', args.host, names)
        return rows

    rows = read(conf, query)
    more = not args.sort_columns and len(rows) > args.limit
    columns = [
        'uuid', 'kind', 'state', 'host', 'node', 'project_id', 'request_id',
        'created_at', 'age_s',
    ]  # fmt: skip
    return output.Listing(rows, columns, total='more' if more else None)


def claim_show(args: Any, conf: Any) -> None:
    uuid = dashed(args.instance)
    claim = read(conf, lambda conn: claim_queries.show(conn, uuid))
    if claim['created_at'] is not None:
        claim['created_at'] = moments.text(claim['created_at'])
    output.document(claim, args.format)


def claim_release(args: Any, conf: Any) -> int:
    """Release claims; return 1 if there was none."""
    return _change(args, conf, lifecycle.cancel, 'released')


def claim_confirm(args: Any, conf: Any) -> int:
    """Confirm claims and moves; return 1 if there was nothing to confirm."""

    def confirm(writer: Any, instances: Any) -> Any:
        return lifecycle.confirm(writer, dict.fromkeys(instances))

    return _change(args, conf, confirm, 'confirmed')


def claim_drop_move(args: Any, conf: Any) -> int:
    """Release second claims; return 1 if there was none."""
    return _change(args, conf, lifecycle.cancel_moves, 'stays where it is')


def _change(
    args: Any, conf: Any, change: Callable[[Any, Any], Any], outcome: str
) -> int:
    uuids = [dashed(uuid) for uuid in args.instance]
    requests = dict.fromkeys(uuids, outcomes.ReleaseRequest())
    changed = write(conf, lambda writer: change(writer, requests))
    for uuid in uuids:
        result = outcome if uuid in changed else 'nothing to do'
        output.say(f'{uuid} {result}')
    return 0 if changed else 1


def audit(args: Any, conf: Any) -> int:
    """Print what does not agree in the store; return 1 if there is any."""
    fallback = default_ratios(conf)
    with open_store(conf) as store:
        fixed = store.write(auditing.fix) if args.fix else 0
        with store.reading() as conn:
            report = auditing.audit(conn, fallback, _stages(conf))
        report.findings += adapters.audit(conf, store)
    found = [*report.findings, *report.unmatched]
    status = 1 if found else 0
    if args.format != 'table':
        output.document(
            {'mended': fixed, **msgspec.to_builtins(report)}, args.format
        )
        return status
    if fixed:
        print(f'{fixed} rows fixed')
    for finding in found:
        parts = (
            finding.server_group, finding.host, finding.aggregate,
            finding.resource_class, finding.consumer,
        )  # fmt: skip
        place = ' '.join(part for part in parts if part)
        output.say(f'{finding.kind}: {place}: {finding.text}')
    counts = Counter(finding.kind for finding in found)
    kinds = ', '.join(f'{number} {kind}' for kind, number in counts.items())
    print(
        f'{len(found)} differences in {report.inventories} inventories, '
        f'{report.allocations} allocations, {report.claims} claims, '
        f'{report.server_groups} server groups{kinds and ": " + kinds}'
    )
    return status


def _stages(conf: Any) -> set[str]:
    """Return the names of the stages that record what they do."""
    configured = plugins.stages(conf.scheduler.stages)
    return {each.name for each in configured} | adapters.recorded_stages(conf)


def message_list(args: Any, conf: Any) -> output.Listing:
    rows = read(conf, quarantine.listing)
    for row in rows:
        row['changed_at'] = moments.text(row['changed_at'])
    columns = ['changed_at', 'message_id', 'method', 'deliveries']
    return output.Listing(rows, columns)


def message_show(args: Any, conf: Any) -> None:
    message = read(conf, lambda conn: quarantine.show(conn, args.message_id))
    message['changed_at'] = moments.text(message['changed_at'])
    output.document(message, args.format)


def message_retry(args: Any, conf: Any) -> None:
    """Cast a quarantined message again, and remove it from quarantine.

    :raises InvalidRequest: the message was too large to be stored in full
    """
    with open_store(conf) as store:
        with store.reading() as conn:
            row = quarantine.show(conn, args.message_id)
        message = row['message']
        if not isinstance(message, dict) or 'args' not in message:
            raise errors.InvalidRequest(
                f'{args.message_id}: not stored in full, so it cannot be sent '
                'again'
            )
        context, method = message['context'], message['method']
        call(args, conf, lambda c: c.cast(context, method, **message['args']))
        store.write(lambda writer: quarantine.drop(writer, args.message_id))
    print('Cast again. Its caller does not wait for a reply any more.')


def message_drop(args: Any, conf: Any) -> None:
    """Remove a message from quarantine.

    :raises MessageNotFound: no message has this id
    """
    if not write(conf, lambda w: quarantine.drop(w, args.message_id)):
        raise errors.MessageNotFound(message_id=args.message_id)
