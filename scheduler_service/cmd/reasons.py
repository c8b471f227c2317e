"""Results, errors and explanations as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_service import errors
from scheduler_service.cmd import output


def hosts(result: Mapping[str, Any]) -> None:
    """Print the hosts of instances."""
    rows = [
        {
            'instance': placement['instance_uuid'],
            'host': placement['selected']['host'],
            'node': placement['selected']['node'],
            'zone': placement['selected'].get('zone'),
            'limits': placement['selected'].get('limits'),
            'alternates': [
                other['host'] for other in placement.get('alternates', ())
            ],
        }
        for placement in result['placements']
    ]
    columns = ['instance', 'host', 'node', 'zone', 'limits', 'alternates']
    output.table(rows, columns, title=f'Request {result["request_id"]}')


def pool(result: Mapping[str, Any]) -> None:
    """Print the pool of a zone."""
    output.table([result], ['zone_id', 'pool_name', 'pool_id'])


def explanation(reasons: Mapping[str, Any] | None) -> None:
    """Print the funnel, the best hosts and the rejections by filter."""
    if not reasons:
        return
    if reasons.get('kept'):
        output.say('The zone has had this pool before.')
    _funnel(reasons)
    finalists = reasons.get('finalists')
    if finalists:
        title = f'Best of {reasons["passed"]} hosts that passed'
        output.table(finalists, ['host', 'weight', 'weights'], title=title)
    rejections(reasons.get('filters'))


def rejections(filters: Any) -> None:
    """Print which filters reject hosts, and the nearest miss of each."""
    if not filters:
        return
    rows = [
        {
            **each,
            'closest': _closest(each.get('closest')),
        }
        for each in filters
    ]
    columns = ['filter', 'out', 'alone', 'closest', 'reason']
    output.table(rows, columns, title='Filters that reject hosts')


def _closest(miss: Mapping[str, Any] | None) -> str | None:
    if not miss:
        return None
    lacks = output.cell(float(miss['lacks']))
    return f'{miss["host"]} lacks {lacks} {miss["unit"]}'


def host_verdicts(nodes: Any) -> None:
    """Print the verdict of every filter on the nodes of a host."""
    for node in nodes:
        title = f'{node["host"]} ({node["node"]})'
        output.table(
            node['filters'], ['filter', 'passes', 'reason'], title=title
        )


def failure(error: errors.SchedulerError) -> None:
    """Print an error with the reasons in its facts."""
    text = str(error.args[0]) if error.args else ''
    output.say(f'{error.name}: {output.cell(text)}', 'error')
    explanation(error.facts)


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
