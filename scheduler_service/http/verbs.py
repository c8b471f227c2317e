"""Metrics of what a kube-scheduler calls, from those of its routes.

Stateless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

# A verb's route is this and its name.
ROUTE = '/extender/'
CALLS = 'extender_verb_calls'
ERRORS = 'extender_verb_errors'
NODES = 'extender_verb_nodes'


def verb_of(route: str) -> str | None:
    """Return the verb of a route; None: it is that of something else."""
    return route.removeprefix(ROUTE) if route.startswith(ROUTE) else None


def with_calls(counters: Mapping[str, Any]) -> dict[str, Any]:
    """Add how often each verb was called.

    A call that is answered with another status than 200 is an error, as one
    is with a text in ``Error``.
    """
    calls: Counter[str] = Counter()
    failed: Counter[str] = Counter(counters.get(ERRORS, {}))
    for label, count in counters.get('http_requests', {}).items():
        route, _, status = label.rpartition(' ')
        verb = verb_of(route)
        if verb is None:
            continue
        calls[verb] += count
        if status != '200':
            failed[verb] += count
    if not calls:
        return dict(counters)
    return {**counters, CALLS: calls, ERRORS: failed}
