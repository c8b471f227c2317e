"""``scheduler-manage why``: why a request was decided as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from scheduler_service import conf as options
from scheduler_service import errors
from scheduler_service.cmd import adapters, output
from scheduler_service.cmd.connections import open_store
from scheduler_service.columns import HostTable
from scheduler_service.conf import effective
from scheduler_service.engine_config import EngineConfig
from scheduler_service.model import Request, documents
from scheduler_service.model.inventory import dashed
from scheduler_service.pipeline import HostPipeline
from scheduler_service.planning import comparison
from scheduler_service.store.reading.snapshot import load_snapshot
from scheduler_service.store.records import daemons, decisions
from scheduler_service.store.records.playback import (
    SnapshotAt,
    snapshot_of,
)

# These refuse what all filters pass.
_OTHERS = 'extenders', 'placement'
_KEPT = ('created_at', 'request_id', 'kind', 'outcome', 'asked')


class _Present(NamedTuple):
    """The hosts of now, and the request for them."""

    table: HostTable
    request: Request


def why(args: Any, conf: Any) -> int:
    """Print why a request was decided as it was, on the hosts as of then.

    :return: 1: these are not recorded, and those of now stand for them; or
        it cannot be decided again, and is printed as it is kept
    :raises DecisionNotFound: no decision of this request is kept
    :raises HostNotFound: there was no such host
    :raises InvalidRequest: the request has no such instance
    """
    with open_store(conf) as store, store.reading() as conn:
        row = _attempt(decisions.show(conn, args.request_id), args.attempt)
        if row['kind'] != 'select_destinations' or 'request' not in row:
            _, fault = _recorded(conn, row, None)
            return _print_kept(row, fault, args.format)
        request = _request(row, args.instance)
        then, fault = _recorded(conn, row, args.instance)
        own = effective.fingerprint(conf)
        judge = row.get('configuration', own)
        engine, reason = configuration_as_of(conn, judge, conf)
        # Reading all hosts of now takes longer than making those of then.
        is_needed = args.host or then is None
        now = _present(conn, request) if is_needed else None
    if fault:
        output.remark(f'{fault}: the hosts are those of now')
    if reason:
        judge = own
        output.remark(f'{reason}: it is judged by the present one')
    state = then or now
    assert state is not None
    report = _kept(row)
    report['taken'] = _taken(engine.hosts, row, then)
    bounds = then.entry.bounds if then else None
    pipeline = comparison.bounded(engine.hosts, state.request, bounds)
    causes = (report['decision'] or {}).get('filters') or ()
    if any(cause['filter'] in _OTHERS for cause in causes):
        pipeline = comparison.Bounded(engine.hosts, {})
    report['as_of'] = 'then' if then else 'now'
    report['judged_by'] = judge
    if args.host:
        report['nodes'] = comparison.of_host(
            pipeline, state.table, state.request, args.host,
            then.taken if then else None,
        )  # fmt: skip
        if then and now:
            report['now'] = _since(engine.hosts, then, now, args.host)
    else:
        of_filters = _relaxed(engine.hosts, state.table, state.request)
        left = comparison.passing(pipeline, state.table, state.request)
        report |= {**of_filters, 'passing': left}
        report['passing_filters'] = of_filters['passing']
    if args.format != 'table':
        output.document(report, args.format)
    else:
        _print(row, report)
    return int(then is None)


def _kept(row: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a decision and its reasons."""
    reasons = row.get('explanation') or (row.get('error') or {}).get('facts')
    return {**{name: row.get(name) for name in _KEPT}, 'decision': reasons}


def _print_kept(row: dict[str, Any], fault: str, form: str) -> int:
    """Print a decision that cannot be made again; return the status."""
    what = 'it keeps no request for hosts'
    if row['kind'] == 'select_destinations' and row['recorded']:
        is_there = ' is damaged: ' in fault or ' is of format ' in fault
        what = fault if is_there else 'its request is not recorded any more'
    output.remark(f'This decision cannot be made again: {what}')
    if form != 'table':
        output.document({**_kept(row), 'as_of': None}, form)
    else:
        output.decision(row)
    return 1


def _present(conn: Connection, request: Request) -> _Present:
    table = load_snapshot(conn).hosts
    table.find_groups(request)
    return _Present(table, request)


def _recorded(
    conn: Connection, row: dict[str, Any], instance: str | None
) -> tuple[SnapshotAt | None, str]:
    """Return what a decision was made on, or why it is not known."""
    if row['recorded'] is None:
        return None, 'What hosts were then is not recorded'
    try:
        snapshot = snapshot_of(conn, *row['recorded'])
    except errors.NotRecorded as error:
        return None, str(error.args[0])
    if instance is not None:
        order, uuids = snapshot.entry.order, snapshot.request.instance_uuids
        at = uuids.index(dashed(instance))
        snapshot.place(order.index(at) if at in order else len(order))
    return snapshot, ''


def _taken(
    pipeline: HostPipeline, row: dict[str, Any], then: SnapshotAt | None
) -> list[dict[str, Any]]:
    """Return the host of each instance, with its rank when it was taken."""
    ranks: dict[str, int | None] = {}
    if then is not None:
        turn = then.turn
        for at, (uuid, taken) in enumerate(then.entry.placed):
            then.place(at)
            asked, bounds = then.request, then.entry.bounds
            judge = comparison.bounded(pipeline, asked, bounds)
            ahead, _ = comparison.standing(judge, then.table, asked, taken)
            ranks[uuid] = None if ahead is None else ahead + 1
        then.place(turn)
    return [
        {
            'instance': place['instance_uuid'],
            'host': place['selected']['host'],
            'node': place['selected']['node'],
            'rank': ranks.get(place['instance_uuid']),
        }
        for place in row.get('placements') or ()
    ]


def _since(
    pipeline: HostPipeline, then: SnapshotAt, now: _Present, host: str
) -> list[dict[str, Any]]:
    """Return for each node of a host what became of it since."""
    nodes = []
    best = comparison.standing(pipeline, now.table, now.request, None).best
    for row in then.table.rows_of_host(host).tolist():
        node = then.table.node_at(row)
        present = now.table.row_of_node(host, node)
        if present is None:
            nodes.append({'node': node, 'there': False})
            continue
        before = comparison.figures(then.table, row)
        after = comparison.figures(now.table, present)
        nodes.append(
            {
                'node': node,
                'there': True,
                'taken': present == best,
                'differs': [
                    {'figure': name, 'then': before.get(name), 'now': value}
                    for name, value in after.items()
                    if before.get(name) != value and value == value
                ],
            }
        )
    return nodes


def _attempt(rows: list[dict[str, Any]], number: int | None) -> dict[str, Any]:
    """Return a decision of a request: that with a number, or the last one."""
    if number is not None and number > len(rows):
        raise errors.DecisionNotFound(
            f'There is no attempt {number}: {len(rows)} are kept'
        )
    return rows[-1 if number is None else number - 1]


def _request(row: dict[str, Any], instance: str | None) -> Request:
    """Return the request of a decision, as the engine has it."""
    request = documents.request(row['request']).with_ids()
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
    """Return how many hosts pass, and what would let some pass."""
    hosts = comparison.passing(pipeline, table, request)
    if hosts:
        return {'passing': hosts, 'relaxations': []}
    smallest = comparison.smallest(pipeline, table, request)
    return {
        'passing': hosts,
        'relaxations': [change._asdict() for change in smallest],
        'fittest': None
        if smallest
        else comparison.fittest(pipeline, table, request),
    }


def _print(row: dict[str, Any], report: dict[str, Any]) -> None:
    output.say(f'{row["created_at"]}  {row["kind"]}: {row["outcome"]}')
    output.origin(row)
    output.say(f'judged by configuration {report["judged_by"]}')
    if 'nodes' in report:
        _print_nodes(report['nodes'])
        _print_changes(report.get('now', ()))
        return
    output.explanation(report['decision'])
    if taken := report['taken']:
        columns = ['instance', 'host', 'node', 'rank']
        output.table(taken, columns, title='Hosts that were taken')
    if hosts := report['passing']:
        output.say(f'{hosts:,} hosts pass.')
    elif hosts := report['passing_filters']:
        output.say(
            f'{hosts:,} hosts pass the filters; extenders or the placement '
            'service took them out.'
        )
    elif rows := report['relaxations']:
        output.table(
            rows, ['change', 'hosts'], title='What would let hosts pass'
        )
    elif fittest := report['fittest']:
        output.say('No single change lets a host pass.')
        _print_amounts(fittest)
    else:
        output.say('No host is as the request names it.')


def _print_nodes(nodes: Sequence[dict[str, Any]]) -> None:
    output.filter_results(nodes)
    for node in nodes:
        _print_amounts(node)
        if weights := node.get('weights'):
            output.table(
                weights['weighers'],
                ['weigher', 'raw', 'weight', 'best_raw', 'best_weight'],
                title=(
                    f'Weights beside the best host, {weights["best"]}; '
                    f'{weights["equal"]} others weigh as much as that'
                ),
            )


def _print_amounts(node: dict[str, Any]) -> None:
    output.table(
        node['amounts'], ['resource', 'asked', 'free', 'lacks'],
        title=f'Amounts of {node["host"]} ({node["node"]})',
    )  # fmt: skip


def _print_changes(nodes: Sequence[dict[str, Any]]) -> None:
    for node in nodes:
        if not node['there']:
            output.say(f'{node["node"]} is gone.')
            continue
        taken = 'would' if node['taken'] else 'would not'
        output.say(f'{node["node"]} {taken} be taken now.')
        if node['differs']:
            output.table(node['differs'], ['figure', 'then', 'now'],
                         title='What differs since')  # fmt: skip


def _loaded(document: effective.Document) -> Any:
    """Return the options of a kept document; secrets are not set.

    :raises: one of ``conf.FAULTS``, for a value that is not valid
    """
    conf = adapters.new_config()
    options.parse(conf, [], default_config_files=[], default_config_dirs=[])
    effective.load(document, conf)
    return conf


def configuration_as_of(
    conn: Connection, fingerprint: str, present: Any
) -> tuple[EngineConfig, str]:
    """Return what a kept configuration makes of the engine.

    :param fingerprint: of that configuration
    :param present: options of the files
    :return: the engine's configuration, and why it is that of the present;
        empty: it is that of then
    :raises ConfigurationError: that of the present does not load
    """
    reason = ''
    if fingerprint != effective.fingerprint(present):
        document = daemons.configuration(conn, fingerprint)
        try:
            if document is None:
                reason = 'is not kept any more'
            else:
                conf = _loaded(document)
                changes = effective.outdated(document, conf)
                if not changes:
                    return adapters.engine(conf), ''
                reason = f'had other files: {"; ".join(map(str, changes))}'
        except (errors.SchedulerError, *options.FAULTS) as fault:
            reason = f'does not load: {fault}'
        reason = f'The configuration {fingerprint} {reason}'
    return adapters.engine(present), reason
