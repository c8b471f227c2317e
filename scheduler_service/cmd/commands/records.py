"""``decision show``, ``rates``, ``shadow``, ``claim`` and ``message``.

Records of requests: decisions with their reasons, their numbers, and how those
of a shadow compare; claims with their allocations; and messages that no daemon
could process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from scheduler_service import errors, moments, texts
from scheduler_service.cmd import output
from scheduler_service.cmd.connections import call, open_store, read, write
from scheduler_service.model.inventory import dashed
from scheduler_service.store.claims import claim_queries, lifecycle, outcomes
from scheduler_service.store.reading import loading
from scheduler_service.store.records import (
    decisions,
    quarantine,
    rates,
    shadow,
)


def decision_show(args: Any, conf: Any) -> None:
    rows = read(conf, lambda conn: decisions.show(conn, args.request_id))
    if args.format != 'table':
        output.document(rows, args.format)
        return
    for row in rows:
        output.decision(row)


def rates_listing(args: Any, conf: Any) -> output.Listing:
    """List how much each daemon decided in each minute."""
    rows = read(conf, lambda conn: rates.listing(conn, args.since, None))
    columns = [
        'minute', 'daemon', 'decisions', 'refused', 'p50_ms', 'p99_ms',
        'filters',
    ]  # fmt: skip
    return output.Listing(rows, columns, ['outcomes', 'durations'])


def claim_list(args: Any, conf: Any) -> output.Listing:
    def query(conn: Any) -> list[dict[str, Any]]:
        rows = claim_queries.listing(
            conn, args.host, args.state, output.query_limit(args),
            args.project, args.older_than,
        )  # fmt: skip
        if args.host and not rows:
            names = loading.host_names(conn)
            output.remark(texts.nothing_matches('--host', args.host, names))
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
    drop = functools.partial(lifecycle.cancel, kind=outcomes.MOVE)
    return _change(args, conf, drop, 'stays where it is')


def _change(
    args: Any, conf: Any, change: Callable[[Any, Any], Any], outcome: str
) -> int:
    uuids = [dashed(uuid) for uuid in args.instance]
    requests = dict.fromkeys(uuids, outcomes.ReleaseRequest())

    def work(writer: Any) -> tuple[Any, dict[str, str]]:
        pods = claim_queries.pods(writer.conn, uuids)
        return change(writer, requests), pods

    changed, pods = write(conf, work)
    for uuid in uuids:
        result = outcome if uuid in changed else 'nothing to do'
        of = f' ({pods[uuid]})' if uuid in pods else ''
        output.say(f'{uuid} {result}{of}')
    return 0 if changed else 1


def shadow_report(args: Any, conf: Any) -> None:
    """Print how a shadow's decisions compare, by verdict and cause."""
    found = read(conf, lambda conn: shadow.report(conn, args.since))
    if args.format != 'table':
        output.document(found, args.format)
        return
    columns = [
        'verdict', 'cause', 'requests', 'mean_ms', 'slowest_ms', 'request_id',
    ]  # fmt: skip
    output.table(found['shadow'], columns, title=found['summary'])


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
