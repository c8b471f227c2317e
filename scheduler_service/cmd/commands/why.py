"""``scheduler-manage why``: why a request was decided as it was."""

from __future__ import annotations

from typing import Any

from scheduler_service import errors
from scheduler_service.cmd import output
from scheduler_service.cmd.connections import read
from scheduler_service.columns import HostTable
from scheduler_service.factory import engine_config
from scheduler_service.model import Request, documents
from scheduler_service.model.inventory import dashed
from scheduler_service.pipeline import HostPipeline, comparison, relaxations
from scheduler_service.store.reading.snapshot import load_snapshot
from scheduler_service.store.records import decisions

_KEPT = ('created_at', 'request_id', 'kind', 'outcome', 'asked')
_NOW = (
    'What hosts were then is not recorded: {what} as the hosts are now, by '
    'the present configuration'
)


def why(args: Any, conf: Any) -> None:
    """Print why a request was decided as it was.

    The kept decision is that of then; all else is worked out on the hosts as
    they are now.

    :raises DecisionNotFound: no decision of this request is kept
    :raises HostNotFound: there is no such host
    :raises InvalidRequest: the decision keeps no request, or the request has
        no such instance
    """
    rows, table = read(
        conf,
        lambda conn: (
            decisions.show(conn, args.request_id),
            load_snapshot(conn).hosts,
        ),
    )
    row = _attempt(rows, args.attempt)
    request = _request(row, table, args.instance)
    pipeline = engine_config(conf).hosts
    report: dict[str, Any] = {name: row.get(name) for name in _KEPT}
    if args.host:
        output.remark(_NOW.format(what=f'{args.host} is judged'))
        report['nodes'] = comparison.of_host(
            pipeline, table, request, args.host
        )
    else:
        kept = row.get('explanation') or (row.get('error') or {}).get('facts')
        report['decision'] = kept
        report |= _relaxed(pipeline, table, request)
    if args.format != 'table':
        output.document(report, args.format)
        return
    output.say(f'{row["created_at"]}  {row["kind"]}: {row["outcome"]}')
    output.origin(row)
    if args.host:
        _print_nodes(report['nodes'])
    else:
        output.explanation(report['decision'])
        _print_relaxations(report)


def _attempt(rows: list[dict[str, Any]], number: int | None) -> dict[str, Any]:
    """Return a decision of a request: that with a number, or the last one."""
    if number is not None and number > len(rows):
        raise errors.DecisionNotFound(
            f'There is no attempt {number}: {len(rows)} are kept'
        )
    return rows[-1 if number is None else number - 1]


def _request(
    row: dict[str, Any], table: HostTable, instance: str | None
) -> Request:
    """Return the request of a decision, as the engine has it."""
    document = row.get('request')
    if document is None or row['kind'] != 'select_destinations':
        raise errors.InvalidRequest(
            f'The decision on {row["request_id"]} cannot be made again: it '
            f'keeps no request for hosts; decision show {row["request_id"]} '
            'prints it'
        )
    request = documents.request(document).with_ids()
    stored = table.instances.among(request.instance_uuids)
    request.stored_groups = table.groups_of(stored)
    if instance is not None:
        if dashed(instance) not in request.instance_uuids:
            raise errors.InvalidRequest(
                f'Request {row["request_id"]} has no instance {instance}'
            )
        request.placing = dashed(instance)
    return request


def _relaxed(
    pipeline: HostPipeline, table: HostTable, request: Request
) -> dict[str, Any]:
    """Return how many hosts pass now, and what would let some pass."""
    hosts = relaxations.passing(pipeline, table, request)
    smallest = [] if hosts else relaxations.smallest(pipeline, table, request)
    return {
        'passing_now': hosts,
        'relaxations': [change._asdict() for change in smallest],
    }


def _print_relaxations(report: dict[str, Any]) -> None:
    if hosts := report['passing_now']:
        output.say(f'Now {hosts:,} hosts pass.')
    elif rows := report['relaxations']:
        output.table(
            rows, ['change', 'hosts'], title='What would let hosts pass now'
        )
    else:
        output.say('Now no host passes, and no single change lets one pass.')


def _print_nodes(nodes: list[dict[str, Any]]) -> None:
    output.filter_results(nodes)
    for node in nodes:
        output.table(
            node['amounts'], ['resource', 'asked', 'free', 'lacks'],
            title=f'Amounts of {node["host"]} ({node["node"]})',
        )  # fmt: skip
        if weights := node.get('weights'):
            output.table(
                weights['weighers'],
                ['weigher', 'raw', 'weight', 'best_raw', 'best_weight'],
                title=(
                    f'Weights beside the best host, {weights["best"]}; '
                    f'{weights["equal"]} others weigh as much'
                ),
            )
