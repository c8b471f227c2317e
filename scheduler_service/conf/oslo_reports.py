"""Options of the [oslo_reports] group: the folder of process reports."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'oslo_reports'

OPTS = [
    cfg.StrOpt(
        'log_dir',
        sample_default='/var/log/scheduler-service',
        help="""
The folder for Guru Meditation Reports, which SIGUSR2 triggers.

Unset: reports go to the standard error stream.
""",
    ),
]
