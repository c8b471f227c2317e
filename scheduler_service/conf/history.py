"""Options of the [history] group: what daemons saw, and for how long."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'history'

OPTS = [
    cfg.FloatOpt(
        'keep_days',
        default=7.0,
        min=0.0,
        help="""
For how many days the database keeps what daemons saw and decided.

By that the hosts can be made again as they were when a request was decided.
0: nothing is recorded.

Related options:

* ``keep_bytes``
""",
    ),
    cfg.IntOpt(
        'keep_bytes',
        default=2 * 2**30,
        min=0,
        help="""
How much of it is kept at most, of all daemons, in bytes.

The oldest is deleted, once a minute, in small steps; what every daemon is
recording stays. 0: nothing is recorded.

Related options:

* ``keep_days``
""",
    ),
]
