"""Options of the [database] group that oslo.db does not have: time limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oslo_config import cfg

if TYPE_CHECKING:
    from scheduler_service.store.sessions import Timeouts

GROUP = 'database'

OPTS = [
    cfg.IntOpt(
        'connect_timeout',
        mutable=True,
        default=3,
        min=2,
        help='How long opening a connection may take, in seconds.',
    ),
    cfg.FloatOpt(
        'lock_timeout',
        mutable=True,
        default=5.0,
        min=0.0,
        max=1e6,
        help="""
How long a statement may wait for a lock of another session, in seconds.

Then the daemon starts its transaction again, and requests go on waiting. The
log and ``ping`` name the session that has the lock, where the database can
tell. 0: the limit of the server applies. MariaDB knows whole seconds.
""",
    ),
    cfg.FloatOpt(
        'statement_timeout',
        mutable=True,
        default=30.0,
        min=0.0,
        help="""
After how many seconds the server ends a statement of a daemon.

Loading the snapshot is exempt, and so are the commands of
``scheduler-manage``. 0: there is no limit. MySQL never has one.
""",
    ),
    cfg.FloatOpt(
        'idle_transaction_timeout',
        mutable=True,
        default=10.0,
        min=0.0,
        help="""
After how many seconds the server ends a session that is idle in a transaction.

A daemon never is, unless its process hangs or is stopped; others would wait
for its locks. PostgreSQL and MariaDB. MariaDB knows whole seconds. 0: the
limit of the server applies.
""",
    ),
    cfg.FloatOpt(
        'response_timeout',
        mutable=True,
        default=3.0,
        min=1.0,
        help="""
How long the database may give no sign of life, in seconds.

Then the daemon counts it as unreachable: it stops consuming requests, gives
those that it has back to the message bus for other daemons, and waits. It is
also the TCP user timeout of connections to the database.
""",
    ),
]


def register_opts(conf: Any) -> None:
    """Register this module's options on *conf*."""
    conf.register_opts(OPTS, group=GROUP)


def timeouts(conf: Any) -> Timeouts:
    """Return how long the database may take."""
    # Commands that use no database need not import SQLAlchemy.
    from scheduler_service.store.sessions import Timeouts

    group = conf.database
    return Timeouts(
        connect=group.connect_timeout,
        lock=group.lock_timeout,
        statement=group.statement_timeout,
        idle_transaction=group.idle_transaction_timeout,
        response=group.response_timeout,
    )
