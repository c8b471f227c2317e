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


class StateReport:
    """Makes a report and writes it.

    :param conf: options to report until there is a daemon
    :ivar daemon: None before it is built
    """

    def __init__(self, conf: Any) -> None:
        self._conf = conf
        self.daemon: Daemon | None = None

    def __call__(self) -> None:
        """Write a report to ``[oslo_reports] log_dir``, or standard error."""
        conf = self.daemon.conf if self.daemon is not None else self._conf
        text = self._text(conf)
        folder = conf.oslo_reports.log_dir
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
        sys.stderr.write(f'{text}\n')
        sys.stderr.flush()

    def _text(self, conf: Any) -> str:
        from oslo_reports.generators.conf import ConfigReportGenerator
        from oslo_reports.report import TextReport

        report = TextReport('Guru Meditation Report')
        report.add_section('Package', _package)
        report.add_section('Threads', _threads)
        if self.daemon is not None:
            for title, look in _sections(self.daemon).items():
                report.add_section(title, _guarded(_table(look)))
        report.add_section(
            'Configuration', _guarded(ConfigReportGenerator(conf))
        )
        return str(report.run())


def _sections(daemon: Daemon) -> dict[str, Callable[[], Any]]:
    introspection = daemon.scheduler.introspection
    health = daemon.scheduler.health
    return {
        'Daemon': lambda: {
            'name': daemon.name,
            'degraded': health.degraded,
            'counters': health.counters(),
        },
        'Snapshot': introspection.snapshot,
        'Queue': introspection.queue,
        'Claims under way': introspection.under_way,
        'Extenders': introspection.extenders,
    }


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


def _table(look: Callable[[], Any]) -> Callable[[], Any]:
    """Return a generator of a section from a function that returns values."""

    def generate() -> Any:
        from oslo_reports.models.with_default_views import (
            ModelWithDefaultViews,
        )
        from oslo_reports.views.text.generic import KeyValueView

        return ModelWithDefaultViews(look(), text_view=KeyValueView())

    return generate


def _guarded(generator: Callable[[], Any]) -> Callable[[], Any]:
    def generate() -> Any:
        try:
            return generator()
        except Exception as fault:
            return f'not available: {type(fault).__name__}: {fault}\n'

    return generate
