"""Answers and refusals in tables that a person enjoys reading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_service import errors
from scheduler_service.cmd import output


def hosts(answer: Mapping[str, Any]) -> None:
    """Show where instances go."""
    rows = [
        {
            'instance': one['instance_uuid'],
            'host': one['selected']['host'],
            'node': one['selected']['node'],
            'zone': one['selected'].get('zone'),
            'limits': one['selected'].get('limits'),
            'alternates': [
                other['host'] for other in one.get('alternates', ())
            ],
        }
        for one in answer['placements']
    ]
    columns = ['instance', 'host', 'node', 'zone', 'limits', 'alternates']
    output.table(rows, columns, title=f'Request {answer["request_id"]}')


def pool(answer: Mapping[str, Any]) -> None:
    """Show where a zone goes."""
    output.table([answer], ['zone_id', 'pool_name', 'pool_id'])


def why(reasons: Mapping[str, Any] | None) -> None:
    """Show the funnel, the finalists and who keeps whom out."""
    if not reasons:
        return
    if reasons.get('kept'):
        output.console().print('The zone had this pool before.')
    _funnel(reasons)
    finalists = reasons.get('finalists')
    if finalists:
        title = f'Best of {reasons["passed"]} hosts that passed'
        output.table(finalists, ['host', 'weight', 'weights'], title=title)
    keepers(reasons.get('filters'))


def keepers(filters: Any) -> None:
    """Show which filters keep hosts out, and by how little."""
    if not filters:
        return
    rows = [
        {
            **one,
            'closest': _closest(one.get('closest')),
        }
        for one in filters
    ]
    columns = ['filter', 'out', 'alone', 'closest', 'reason']
    output.table(rows, columns, title='Who keeps hosts out')


def _closest(miss: Mapping[str, Any] | None) -> str | None:
    if not miss:
        return None
    lacks = output.cell(float(miss['lacks']))
    return f'{miss["host"]} lacks {lacks} {miss["unit"]}'


def host_verdicts(nodes: Any) -> None:
    """Show what every filter makes of one host."""
    for node in nodes:
        title = f'{node["host"]} ({node["node"]})'
        output.table(
            node['filters'], ['filter', 'passes', 'reason'], title=title
        )


def refusal(error: errors.SchedulerError) -> None:
    """Show an error with the reasons that it carries."""
    text = str(error.args[0]) if error.args else ''
    output.console().print(f'[bold red]{error.name}[/]: {output.cell(text)}')
    why(error.facts)


def _funnel(reasons: Mapping[str, Any]) -> None:
    steps = reasons.get('funnel') or []
    if steps and 'left' in steps[0]:
        title = f'{reasons["pools"]} pools at the start'
        output.table(steps, ['filter', 'left', 'pools'], title=title)
    elif steps:
        rows = [
            {**step, 'removed': step['start'] - step['end']} for step in steps
        ]
        title = f'{reasons["hosts"]} hosts at the start'
        output.table(rows, ['filter', 'start', 'removed', 'end'], title=title)
