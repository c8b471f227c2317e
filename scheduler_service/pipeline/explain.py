"""Reasons: which filter rejects which hosts, and the host that came nearest.

Computed when a request is refused or a caller wants an explanation, never for
a request that succeeds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.columns.dictionary import Mask
from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.hosts.aggregate_filter import unknown_zone
from scheduler_service.model import Request
from scheduler_service.pipeline.filtering import FilterResult, as_rows
from scheduler_service.request_filters import short_query
from scheduler_service.settings import Settings
from scheduler_service.texts import figure
from scheduler_service.time_slice import Counts

FilterResults = Sequence[FilterResult]
# In characters: a reason may quote texts of a request, of any length.
_LONGEST_REASON = 2000


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """The table, the request and the settings that reasons refer to."""

    table: HostTable
    request: Request
    settings: Settings


def refusal(
    results: FilterResults, subject: Subject, counts: Counts, placed: int
) -> errors.NoValidHost:
    """Return the error for a request without a valid host.

    :param counts: hosts before and after each filter
    :param placed: how many of its instances got a host before
    """
    causes = rejections(results, subject)
    request = subject.request
    facts: dict[str, Any] = {
        'hosts': len(subject.table),
        'funnel': as_rows(counts),
        'request_id': request.request_id,
        'num_instances': request.num_instances,
        'placed': placed,
        'filters': causes,
        'query': short_query(
            request, subject.table.topology.aggregates, subject.settings
        ),
    }
    if request.why_ignored:
        facts['excluded_hosts'] = request.why_ignored
    sentences = (
        unknown_zone(subject.table, request, subject.settings),
        summary(facts),
    )
    text = f'No valid host was found. {". ".join(filter(None, sentences))}'
    return errors.NoValidHost(text, **facts)


def rejections(
    results: FilterResults, subject: Subject
) -> list[dict[str, Any]]:
    """Return for each filter that rejects hosts how many, and why.

    ``out``: number of rejected hosts; ``alone``: number of rejected hosts that
    every other filter passes; ``closest``: the host that misses least, among
    the ``alone`` hosts where there are any, else among those that are as the
    request names them; ``reason``: that of the closest or first host;
    ``never``: why no host can ever pass.
    """
    failing = np.zeros(len(subject.table), np.int32)
    named = np.ones(len(subject.table), np.bool_)
    for host_filter, mask in results:
        failing += ~mask
        if host_filter.by_name:
            named &= mask
    causes = []
    for host_filter, mask in results:
        out = ~mask
        if out.any():
            alone = out & (failing == 1)
            masks = out, alone, out & named
            with errors.naming(host_filter.name):
                causes.append(_rejection(host_filter, subject, *masks))
    return causes


def _rejection(
    host_filter: HostFilter,
    subject: Subject,
    out: Mask,
    alone: Mask,
    named: Mask,
) -> dict[str, Any]:
    table, request, settings = subject.table, subject.request, subject.settings
    near = alone if alone.any() else named
    among = np.flatnonzero(near if near.any() else out)
    entry: dict[str, Any] = {
        'filter': host_filter.name,
        'out': int(np.count_nonzero(out)),
        'alone': int(np.count_nonzero(alone)),
    }
    row = int(among[0])
    missed = host_filter.miss(table, request, settings)
    if missed is not None and near.any():
        lacking, unit = missed
        near = np.where(lacking[among] > 0, lacking[among], np.inf)
        row = int(among[near.argmin()])
        if np.isfinite(near.min()):
            entry['closest'] = {
                'host': table.host_at(row),
                'node': table.node_at(row),
                'lacks': float(lacking[row]),
                'unit': unit,
            }
    entry['reason'] = _reason(host_filter, subject, row)
    if never := host_filter.never(table, request, settings):
        entry['never'] = never
        entry['reason'] += f'; {never}'
    entry['sentence'] = (
        f'{host_filter.name}: {entry["out"]:,} of {len(table):,}: '
        f'{entry["reason"]}'
    )
    return entry


def summary(facts: dict[str, Any]) -> str:
    """Word the facts of a refusal in one line."""
    if not facts['hosts']:
        return 'There are no hosts.'
    sentences = []
    if facts['num_instances'] > 1:
        sentences.append(
            f'{facts["placed"]} of {facts["num_instances"]} instances would '
            'have found one'
        )
    steps = [
        f'{step["filter"]} left {step["end"]:,} of {step["start"]:,}'
        for step in facts['funnel']
        if step['end'] < step['start']
    ]
    sentences.append(
        f'{facts["hosts"]:,} hosts: ' + (', '.join(steps) or 'none')
    )
    causes = facts['filters']
    alone = [cause for cause in causes if cause['alone']]
    sentences += [_short_cause(cause) for cause in alone or causes]
    return '; '.join(sentences)


def decisive_filter(facts: Mapping[str, Any]) -> str:
    """Return the filter that left no host or pool; empty: no filter did."""
    for step in facts.get('funnel') or ():
        if not step.get('end', step.get('left')):
            return str(step['filter'])
    return ''


def _short_cause(cause: dict[str, Any]) -> str:
    text = f'{cause["filter"]} keeps out {cause["out"]:,}'
    if cause['alone']:
        text = f'{cause["filter"]} alone keeps out {cause["alone"]:,}'
    closest = cause.get('closest')
    if closest:
        lacks = f'lacks {figure(closest["lacks"])} {closest["unit"]}'
        never = f'; {cause["never"]}' if 'never' in cause else ''
        return f'{text} (closest: {closest["host"]} {lacks}{never})'
    return f'{text} ({cause["reason"]})'


def host_report(
    results: FilterResults, subject: Subject, host: str
) -> list[dict[str, Any]]:
    """Return the result of every filter for each node of a host.

    :raises HostNotFound: there is no such host
    """
    rows = subject.table.rows_of_host(host)
    if not len(rows):
        raise errors.HostNotFound(host=host)
    return [
        {
            'host': host,
            'node': subject.table.node_at(int(row)),
            'filters': [
                _host_result(host_filter, mask, subject, int(row))
                for host_filter, mask in results
            ],
        }
        for row in rows
    ]


def _reason(host_filter: HostFilter, subject: Subject, row: int) -> str:
    why = host_filter.reason(
        subject.table, row, subject.request, subject.settings
    )
    more = len(why) - _LONGEST_REASON
    if more > 0:
        return f'{why[:_LONGEST_REASON]}... ({more:,} more characters)'
    return why


def _host_result(
    host_filter: HostFilter, mask: Mask, subject: Subject, row: int
) -> dict[str, Any]:
    passes, why, missed = bool(mask[row]), '', None
    if not passes:
        with errors.naming(host_filter.name):
            why = _reason(host_filter, subject, row)
            missed = host_filter.miss(
                subject.table, subject.request, subject.settings
            )
    result = {'filter': host_filter.name, 'passes': passes, 'reason': why}
    if missed is not None and 0 < missed[0][row] < np.inf:
        result |= {'lacks': float(missed[0][row]), 'unit': missed[1]}
    return result
