"""Commands that ask daemons: ``select``, ``zone schedule``, ``ping``, ``top``.

The commands call a running daemon, or with ``--local`` run its engine in this
process. ``top`` asks all daemons on a topic what they do: on a terminal it
prints that anew every two seconds, else a line each time.
"""

from __future__ import annotations

import contextlib
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from scheduler_service import errors, texts
from scheduler_service.cmd import output
from scheduler_service.cmd.commands.inventory import read_document
from scheduler_service.cmd.connections import call, connected, open_store, read
from scheduler_service.cmd.program import run_within
from scheduler_service.factory import build
from scheduler_service.model import documents, plain
from scheduler_service.request_context import RequestContext
from scheduler_service.rpc.client import SchedulerClient
from scheduler_service.scheduler import Scheduler
from scheduler_service.store.claims import claim_queries

import oslo_messaging  # isort: skip

_CONTEXT = {'user_id': 'scheduler-manage', 'roles': ['admin']}
_TIMEOUT_S = 60.0
# How long a daemon may take to say how it is, in seconds.
_PING_S = 5.0
# How often the figures of all daemons are printed.
_EVERY_S = 2.0
# How long a daemon may take to answer, in seconds.
_ANSWER_S = 2.0
_MOST_REFUSALS = 5
# Moves the cursor to the upper left, and clears the terminal.
_CLEAR = '\x1b[H\x1b[2J'
_NOTHING: dict[str, Any] = {'stages': {}}
Status = dict[str, Any]


def select(args: Any, conf: Any) -> None:
    """Select hosts, and claim them unless it is a dry run."""
    document = _object(read_document(args.request, errors.InvalidRequest))
    if args.host:
        return _explain(args, conf, document)
    if not args.dry_run and document.get('request_id') is None:
        # The decision is stored under this id, with its reasons.
        document['request_id'] = f'req-{uuid.uuid4()}'
    options = {'claim': not args.dry_run, 'explain': args.explain}
    try:
        with _reasons_of_errors(args):
            result = _run(
                args,
                conf,
                lambda scheduler: scheduler.select_destinations(
                    documents.checked_request(document), **options
                ),
                lambda client: client.select_destinations(
                    _CONTEXT, document, **options
                ),
            )
    except errors.NoValidHost:
        if not args.dry_run:
            output.remark(f'Request {document["request_id"]}')
        raise
    _print(args, result, output.placements)


def _explain(args: Any, conf: Any, document: Any) -> None:
    result = _run(
        args,
        conf,
        lambda scheduler: scheduler.explain(
            documents.checked_request(document), args.host
        ),
        lambda client: client.explain(_CONTEXT, document, args.host),
    )
    if args.format != 'table':
        output.document(result, args.format)
        return
    output.filter_results(result['nodes'])
    output.rejections(result['filters'])


def zone(args: Any, conf: Any) -> None:
    """Select a pool for a zone, and store it unless it is a dry run."""
    document = {}
    if args.request:
        document = _object(read_document(args.request, errors.InvalidRequest))
    if args.name:
        document['name'] = args.name
    if args.attribute:
        document['attributes'] = dict(args.attribute)
    caller = _CONTEXT
    if args.role:
        # A member of the project, in place of an operator.
        project = document.get('project_id') or 'scheduler-manage'
        caller = {**caller, 'project_id': project, 'roles': args.role}
    options = {'keep': not args.dry_run, 'explain': args.explain}
    with _reasons_of_errors(args):
        result = _run(
            args,
            conf,
            lambda scheduler: scheduler.schedule_zone(
                documents.zone(document),
                RequestContext.of(conf, caller),
                **options,
            ),
            lambda client: client.schedule_zone(caller, document, **options),
        )
    _print(args, result, output.pool)


def release(args: Any, conf: Any) -> int:
    """Release claims through a daemon; return 1 if there was none."""
    pods: dict[str, str] = {}
    # The daemon may use a database that this command cannot reach.
    with contextlib.suppress(errors.SchedulerError):
        pods = read(conf, lambda conn: claim_queries.pods(conn, args.instance))
    released = _run(
        args,
        conf,
        lambda scheduler: scheduler.release(args.instance),
        lambda client: client.release(_CONTEXT, args.instance),
    )
    for uid in pods.keys() & {*released}:
        output.say(f'{uid} released ({pods[uid]})')
    print(f'{len(released)} of {len(args.instance)} held a claim.')
    return 0 if released else 1


def ping(args: Any, conf: Any) -> None:
    # Half of it is left to ask another daemon.
    args.timeout = args.timeout / 2 if args.timeout else _PING_S
    try:
        result = call(
            args, conf, lambda client: client.ping(_CONTEXT, args.daemon, True)
        )
    except errors.ServiceBusy:
        if args.daemon is None:
            raise
        other = call(args, conf, lambda client: client.ping(_CONTEXT))
        names = sorted({other['server'], *other['peers']} - {args.daemon})
        raise errors.ServiceBusy(
            f'Daemon {args.daemon} does not answer, but {other["server"]} '
            f'does; there are {texts.some(names)}'
            f'{texts.nearest(args.daemon, names)}'
        ) from None
    # What is wrong comes first.
    result = {'degraded': None, 'degraded_since': None, **result}
    shown = result if args.format == 'table' else [result]
    output.document(shown, args.format)


def _run(
    args: Any,
    conf: Any,
    submit: Callable[[Scheduler], Any],
    ask: Callable[[SchedulerClient], Any],
) -> Any:
    """Return the reply of a daemon, or of an engine in this process.

    :param submit: returns the future of the engine's reply
    :param ask: calls a daemon
    :raises StoreUnavailable: the database does not answer
    """
    if not args.local:
        return call(args, conf, ask)
    with open_store(conf) as store:
        scheduler = build(conf, store)
        # A recording begins with all hosts: too much for a decision or two.
        scheduler.record_no_history()
        scheduler.start()
        try:
            return plain(submit(scheduler).result(_TIMEOUT_S))
        finally:
            scheduler.stop()


@contextlib.contextmanager
def _reasons_of_errors(args: Any) -> Iterator[None]:
    """With ``--explain``, print the reasons of an error."""
    try:
        yield
    except errors.SchedulerError as error:
        if args.explain and args.format == 'table':
            output.explanation(error.facts)
        elif args.explain:
            output.document({'error': error.to_dict()}, args.format)
        raise


def _object(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise errors.InvalidRequest('expected an object as the request')
    return document


def _print(
    args: Any, result: Any, print_table: Callable[[dict[str, Any]], None]
) -> None:
    if args.format != 'table':
        output.document(result, args.format)
        return
    print_table(result)
    if args.explain:
        output.explanation(result.get('explanation'))


def top(args: Any, conf: Any) -> None:
    """Print the figures of all daemons until an interrupt.

    :raises ServiceBusy: no broker or no daemon answers
    """
    remaining = args.count
    with connected(args, conf) as client:
        while remaining is None or remaining > 0:
            start = time.monotonic()
            _print_top(_statuses(client, args.timeout))
            remaining = remaining and remaining - 1
            if remaining != 0:
                time.sleep(max(0.0, start + _EVERY_S - time.monotonic()))


def _statuses(client: SchedulerClient, timeout: float | None) -> list[Status]:
    """Return the state of each daemon, by name; of a silent one only that."""
    limit = timeout or _ANSWER_S * 5

    def ask(server: str | None, seconds: float) -> Status:
        return run_within(
            seconds, lambda: client.ping(_CONTEXT, server, True), 'ping'
        )

    try:
        first = ask(None, limit)
    except TimeoutError:
        raise oslo_messaging.MessagingTimeout('no daemon answers') from None
    statuses = [first]
    silent = (
        TimeoutError, oslo_messaging.MessagingException, errors.SchedulerError,
    )  # fmt: skip
    for name in dict.fromkeys(first['peers']):
        try:
            statuses.append(ask(name, _ANSWER_S))
        except silent:
            statuses.append({'server': name})
    return sorted(statuses, key=lambda status: str(status['server']))


def _print_top(statuses: Sequence[Status]) -> None:
    if not sys.stdout.isatty():
        output.write([_line(statuses)])
        sys.stdout.flush()
        return
    sys.stdout.write(_CLEAR)
    output.table(
        [_daemon(status) for status in statuses],
        ['daemon', 'rate', 'refused', 'queue', 'hosts_up', 'database',
         'degraded'],
        title=time.strftime(
            '%H:%M:%S UTC; rates per second, of the last minute',
            time.gmtime(),
        ),
    )  # fmt: skip
    answered = [status for status in statuses if 'recent' in status]
    output.table(
        [
            {'daemon': status['server'], 'stage': stage, **figures}
            for status in answered
            for stage, figures in status['recent']['stages'].items()
        ],
        ['daemon', 'stage', 'count', 'mean_ms', 'p95_ms'],
        title='Stages of the last minute',
    )
    refusals = sum(
        (Counter(status['recent']['refusals']) for status in answered),
        Counter[str](),
    )
    output.table(
        [
            {'refusals': number, 'filter_and_error': label.strip()}
            for label, number in refusals.most_common(_MOST_REFUSALS)
        ],
        ['refusals', 'filter_and_error'],
        title='Refusals of the last minute',
    )
    # Daemons share the hosts: the first has the zones of all.
    output.table(
        answered[0]['recent']['zones'],
        ['zone', 'resource', 'free', 'full'],
        title='Fullest zones, in percent',
    )
    sys.stdout.flush()


def _daemon(status: Status) -> dict[str, Any]:
    row: dict[str, Any] = {'daemon': status['server']}
    if 'recent' not in status:
        return {**row, 'degraded': 'does not answer'}
    seconds = max(status['recent']['seconds'], 1.0)
    requests = status['recent']['requests']
    chosen = sum(requests.get(name, 0) for name in ('chosen', 'zone chosen'))
    total = sum(requests.values())
    return {
        **row,
        'rate': round(total / seconds, 1),
        'refused': round((total - chosen) / seconds, 1),
        'queue': status['waiting'],
        'hosts_up': f'{status["hosts_up"]}/{status["hosts"]}',
        'database': status['database'],
        'degraded': status['degraded'],
    }


def _line(statuses: Iterable[Status]) -> str:
    rows = [_daemon(status) for status in statuses]
    parts = [time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())]
    parts.append('last minute, per second:')
    for name in ('rate', 'refused', 'queue'):
        total = sum(row.get(name, 0) for row in rows)
        parts.append(f'{name} {round(total, 1):g}')
    p95_ms: dict[str, float] = {}
    for status in statuses:
        for stage, figures in status.get('recent', _NOTHING)['stages'].items():
            p95_ms[stage] = max(p95_ms.get(stage, 0.0), figures['p95_ms'])
    parts += [f'{stage} {value:g} ms' for stage, value in p95_ms.items()]
    for row in rows:
        state = texts.cell(row['degraded']) or 'well'
        parts.append(f'{row["daemon"]}: {state}')
    return texts.cell('  '.join(parts))
