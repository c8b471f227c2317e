"""Guru Meditation Report: the state of the process, as text.

A thread of its own makes the report, in any state of the others. Its libraries
are imported for the first report.
"""

from __future__ import annotations

import datetime
import logging
import pathlib
import sys
import threading
from collections.abc import Callable
from importlib import metadata
from typing import Any

from scheduler_service.cmd.daemon import Daemon
from scheduler_service.cmd.program import write_file

LOG = logging.getLogger(__name__)
_NAME = 'scheduler-service'


def write_report(daemon: Daemon) -> None:
    """Write a report to ``[oslo_reports] log_dir``, or standard error."""
    text = _text(daemon)
    folder = daemon.conf.oslo_reports.log_dir
    if folder:
        now = datetime.datetime.now(datetime.UTC)
        path = pathlib.Path(folder) / (
            f'{_NAME}_gurumeditation_{now:%Y%m%d%H%M%S%f}'
        )
        try:
            # Only for the owner: the report has requests and options.
            write_file(path, text.encode(), 0o600)
        except OSError as fault:
            LOG.error('The report cannot be written: %s', fault)
        else:
            LOG.info('A report of the process is in %s', path)
            return
    print(text, file=sys.stderr, flush=True)


def _text(daemon: Daemon) -> str:
    from oslo_reports.generators.conf import ConfigReportGenerator
    from oslo_reports.models.with_default_views import ModelWithDefaultViews
    from oslo_reports.report import TextReport

    def guarded(look: Callable[[], Any]) -> Callable[[], Any]:
        def generate() -> Any:
            try:
                found = look()
                if isinstance(found, dict):
                    return ModelWithDefaultViews(found)
                return found
            except Exception as fault:
                return f'not available: {type(fault).__name__}: {fault}\n'

        return generate

    introspection = daemon.scheduler.introspection
    health = daemon.scheduler.health
    report = TextReport('Guru Meditation Report')
    for title, look in {
        'Package': _package,
        'Threads': _threads,
        'Daemon': lambda: {
            'name': daemon.name,
            'degraded': health.degraded,
            'counters': health.counters(),
        },
        'Snapshot': introspection.snapshot,
        'Queue': introspection.queue,
        'Claims under way': introspection.under_way,
        'Extenders': introspection.extenders,
        'Configuration': ConfigReportGenerator(daemon.conf),
    }.items():
        report.add_section(title, guarded(look))
    return str(report.run())


def _package() -> str:
    release = metadata.version(_NAME)
    return f'{_NAME} {release}, Python {sys.version.split()[0]}\n'


def _threads() -> str:
    from oslo_reports.models.threading import StackTraceModel

    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        model = StackTraceModel(frame)
        model.set_current_view_type('text')
        title = f'------ {names.get(ident, "unknown")} (thread {ident}) ------'
        parts.append(f'{title}\n{model}')
    return '\n'.join(sorted(parts))
