"""Counts claims by state and age."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import clock, schema

# Names of ages, and their upper limits in seconds.
AGES = (
    ('1m', 60.0),
    ('10m', 600.0),
    ('1h', 3600.0),
    ('1d', 86_400.0),
    ('older', None),
)
_CLAIMS = ('claimed', 'confirmed')


def count(conn: Connection) -> dict[tuple[str, str], int]:
    """Return the number of claims by (state, age), also where it is 0.

    States are ``claimed``, ``confirmed``, and ``moving`` for the second
    claims of moves. A claim counts under the lowest limit of :data:`AGES`
    that it has not passed.
    """
    states = (*_CLAIMS, 'moving')
    counts = {(state, age): 0 for state in states for age, _ in AGES}
    now = clock.read(conn)
    instances, moves = schema.instances, schema.moves
    age = _age(instances.c.created_at, now)
    query = (
        sa.select(instances.c.state, age, sa.func.count())
        .where(instances.c.state.in_(_CLAIMS))
        .group_by(instances.c.state, age)
    )
    for state, name, number in conn.execute(query):
        counts[state, name] = number
    age = _age(moves.c.created_at, now)
    for name, number in conn.execute(
        sa.select(age, sa.func.count()).group_by(age)
    ):
        counts['moving', name] = number
    return counts


def _age(created_at: sa.Column[float], now: float) -> sa.Case[str]:
    """Return the name of a claim's age as an expression."""
    # Literals: a database treats two expressions with parameters as different,
    # and then does not group by the selected one.
    younger: list[Any] = [
        (created_at >= sa.literal_column(repr(now - limit)),
         sa.literal_column(f"'{name}'"))
        for name, limit in AGES
        if limit is not None
    ]  # fmt: skip
    return sa.case(*younger, else_=sa.literal_column(f"'{AGES[-1][0]}'"))
