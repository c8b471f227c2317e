"""Values as people read them: times, amounts, outcomes, verbs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib import parse

import markupsafe

from scheduler_service import moments, texts
from scheduler_service.store.records.decision_list import GOOD

_UNITS = ((86_400.0, 'days'), (3600.0, 'h'), (60.0, 'min'), (1.0, 's'))
# Of resource classes: how many of them are a GB.
_OF_A_GB = {'MEMORY_MB': 1024, 'DISK_GB': 1}
_CLASSES = {'VCPU': 'vCPUs', 'PCPU': 'dedicated CPUs', 'MEMORY_MB': 'Memory',
            'DISK_GB': 'Disk'}  # fmt: skip
_KINDS = {
    'select_destinations': 'choose hosts',
    'schedule_zone': 'choose a DNS pool',
    'external': 'order hosts',
    'pod_filter': 'filter nodes for a pod',
    'pod_prioritize': 'score nodes for a pod',
    'pod_preempt': 'preempt pods',
    'pod_bind': 'bind a pod',
}
_OUTCOMES = {'NoValidHost': 'refused', 'NoValidPoolFound': 'refused'}


def age(seconds: float) -> str:
    """Return a duration with one unit, such as 3 min."""
    seconds = max(0.0, seconds)
    # Two days and more are counted in days.
    for unit, name in _UNITS:
        if seconds >= (2 * unit if name == 'days' else unit):
            return f'{int(seconds // unit)} {name}'
    return '0 s'


def when(value: str | float | None, form: str = '{} ago') -> Any:
    """Return how long ago a time is; the time is the title.

    :param value: seconds since the epoch, or as in RFC 3339
    :param form: where the age stands in the text, and as {1} the time
    """
    if not value:
        return ''
    if isinstance(value, str):
        value = datetime.fromisoformat(value).timestamp()
    text = moments.text(value)
    words = form.format(age(time.time() - value), f'{text[:10]} {text[11:16]}')
    return markupsafe.Markup(
        '<time datetime="{0}" title="{0}">{1}</time>'
    ).format(text, words)


def number(value: float | None) -> str:
    """Return a number with its thousands apart; small ones with decimals."""
    if value is None:
        return ''
    digits = 1 if abs(value) < 100 and value != int(value) else 0
    return f'{value:,.{digits}f}'


def percent(value: float | None) -> str:
    """Return a number of percent with its sign."""
    return '' if value is None else f'{value:.{int(0 < abs(value) < 10)}f} %'


def amount(value: float, resource: str) -> str:
    """Return an amount of a resource class: in GB or TB where it has these."""
    divisor = _OF_A_GB.get(resource)
    if divisor is None:
        return number(value)
    size, unit = value / divisor, 'GB'
    if abs(size) >= 1024:
        size, unit = size / 1024, 'TB'
    return f'{number(size)} {unit}'


def kind(name: str) -> str:
    """Return what a verb is for."""
    return _KINDS.get(name, name.replace('_', ' '))


def outcome(decision: Mapping[str, Any]) -> str:
    """Return what came of a decision, and by which filter."""
    name = str(decision['outcome'])
    text = _OUTCOMES.get(name, name)
    if name not in GOOD and decision.get('filter'):
        text += f' by {decision["filter"]}'
    return text


def linked(sent: dict[str, str], **changes: str) -> str:
    """Return the query of a list with other parameters; empty: without."""
    filled = {name: value for name, value in (sent | changes).items() if value}
    return f'?{parse.urlencode(filled)}'


FILTERS = {
    'age': age, 'amount': amount, 'cell': texts.cell,
    'kind': kind, 'linked': linked, 'number': number, 'outcome': outcome,
    'percent': percent, 'resource': lambda name: _CLASSES.get(name, name),
    'when': when,
}  # fmt: skip
