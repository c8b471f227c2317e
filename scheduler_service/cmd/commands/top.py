"""``scheduler-manage top``: what the daemons on a topic do at the moment.

The figures come from the daemons, which answer ``ping`` over the bus. On a
terminal the command prints them anew every two seconds, else a line each time.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from scheduler_service import errors
from scheduler_service.cmd import output
from scheduler_service.cmd.connections import connected
from scheduler_service.cmd.program import run_within
from scheduler_service.rpc.client import SchedulerClient

import oslo_messaging  # isort: skip

_CONTEXT = {'user_id': 'scheduler-manage', 'roles': ['admin']}
_EVERY_S = 2.0
# How long a daemon may take to answer, in seconds.
_ANSWER_S = 2.0
_MOST_REFUSALS = 5
# Moves the cursor to the upper left, and clears the terminal.
_CLEAR = '\x1b[H\x1b[2J'
_NOTHING: dict[str, Any] = {'stages': {}}
Status = dict[str, Any]


def top(args: Any, conf: Any) -> None:
    """Print the figures of all daemons until an interrupt.

    :raises ServiceBusy: no broker or no daemon answers
    """
    remaining = args.count
    with connected(args, conf) as client:
        while remaining is None or remaining > 0:
            start = time.monotonic()
            _print(_statuses(client, args.timeout))
            remaining = remaining and remaining - 1
            if remaining != 0:
                time.sleep(max(0.0, start + _EVERY_S - time.monotonic()))


def _statuses(client: SchedulerClient, timeout: float | None) -> list[Status]:
    """Return the state of each daemon, by name; of a silent one only that.

    :param timeout: for any daemon to answer, in seconds
    """
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


def _print(statuses: Sequence[Status]) -> None:
    if not sys.stdout.isatty():
        output.write([_line(statuses)])
        sys.stdout.flush()
        return
    sys.stdout.write(_CLEAR)
    output.table(
        [_daemon(status) for status in statuses],
        ['daemon', 'rate', 'refused', 'queue', 'hosts_up', 'database',
         'degraded'],
        title=time.strftime('%H:%M:%S UTC', time.gmtime()),
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
    for name in ('rate', 'refused', 'queue'):
        total = sum(row.get(name, 0) for row in rows)
        parts.append(f'{name} {round(total, 1):g}')
    p95_ms: dict[str, float] = {}
    for status in statuses:
        for stage, figures in status.get('recent', _NOTHING)['stages'].items():
            p95_ms[stage] = max(p95_ms.get(stage, 0.0), figures['p95_ms'])
    parts += [f'{stage} {value:g} ms' for stage, value in p95_ms.items()]
    for row in rows:
        state = output.cell(row['degraded']) or 'well'
        parts.append(f'{row["daemon"]}: {state}')
    return output.cell('  '.join(parts))
