"""Options of the [database] group beside oslo.db's: time limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oslo_config import cfg

if TYPE_CHECKING:
    from scheduler_service.store.sessions import Timeouts

GROUP = 'database'

OPTS = [
    cfg.IntOpt(
        'connect_timeout',
        default=3,
        min=2,
        max=1_000_000,
        help="""
How long opening a connection may take, in seconds.

Raise it if connections are slow to open, such as through a proxy. A start or
a failover that meets a silent server waits as long.
""",
    ),
    cfg.FloatOpt(
        'lock_timeout',
        default=5.0,
        min=0.0,
        max=1e6,
        help="""
How long a statement may wait for a lock of another session, in seconds.

After that the daemon repeats its transaction, and requests go on waiting. The
log and ``ping`` name the session that holds the lock, where the database shows
it. Lower it if other programs lock the same tables and requests have short
timeouts. 0: the limit of the server applies. MariaDB rounds to whole seconds.
""",
    ),
    cfg.FloatOpt(
        'response_timeout',
        default=3.0,
        min=1.0,
        max=1e6,
        help="""
After how many seconds without a response the database counts as unreachable.

The daemon then stops consuming requests, returns those that it has to the
message bus for other daemons, and waits. Raise it if the network or a
failover of the database is silent for longer. This is also the TCP user
timeout of connections to the database.
""",
    ),
]


def timeouts(conf: Any) -> Timeouts:
    # Imported here: commands without a database do not need SQLAlchemy.
    from scheduler_service.store.sessions import Timeouts

    group = conf.database
    return Timeouts(
        connect=group.connect_timeout,
        lock=group.lock_timeout,
        response=group.response_timeout,
    )
