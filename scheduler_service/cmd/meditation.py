"""Guru Meditation Report: what the process is doing, for people, as text.

Made on a thread of its own, whichever state the others are in. The libraries
behind it are imported for the first report.
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

LOG = logging.getLogger(__name__)
_NAME = 'scheduler-service'
_TITLE = 'Guru Meditation Report'


class Meditation:
    """Makes a report and writes it.

    :param conf: options; those of the daemon once there is one
    :ivar daemon: None before it is built
    """

    def __init__(self, conf: Any) -> None:
        self._conf = conf
        self.daemon: Daemon | None = None

    def __call__(self) -> None:
        """Write a report to ``[oslo_reports] log_dir``, or to the errors."""
        conf = self.daemon.conf if self.daemon is not None else self._conf
        text = self.text(conf)
        folder = conf.oslo_reports.log_dir
        if not folder:
            sys.stderr.write(f'{text}\n')
            sys.stderr.flush()
            return
        now = datetime.datetime.now(datetime.UTC)
        path = pathlib.Path(folder) / (
            f'{_NAME}_gurumeditation_{now:%Y%m%d%H%M%S%f}'
        )
        try:
            # Requests are in it, and values of options.
            path.touch(0o600, exist_ok=False)
            path.write_text(text)
        except OSError as fault:
            LOG.error('The report cannot be written: %s', fault)
            sys.stderr.write(f'{text}\n')
            sys.stderr.flush()
        else:
            LOG.info('A report of the process is in %s', path)

    def text(self, conf: Any) -> str:
        """Return a report."""
        from oslo_reports.generators.conf import ConfigReportGenerator
        from oslo_reports.report import TextReport

        report = TextReport(_TITLE)
        report.add_section('Package', _package)
        report.add_section('Threads', _threads)
        if self.daemon is not None:
            self._add_engine(report, self.daemon)
        report.add_section('Configuration', _safe(ConfigReportGenerator(conf)))
        return str(report.run())

    def _add_engine(self, report: Any, daemon: Daemon) -> None:
        introspection = daemon.scheduler.introspection
        for title, look in (
            ('Daemon', lambda: _condition(daemon)),
            ('Snapshot', introspection.snapshot),
            ('Queue', introspection.queue),
            ('Claims under way', introspection.under_way),
            ('Extenders', introspection.extenders),
        ):
            report.add_section(title, _safe(_listed(look)))


def _condition(daemon: Daemon) -> dict[str, Any]:
    health = daemon.scheduler.health
    return {
        'name': daemon.name,
        'degraded': health.degraded,
        'counters': health.counters(),
    }


def _package() -> str:
    release = metadata.version(_NAME)
    return f'{_NAME} {release}, Python {sys.version.split()[0]}\n'


def _threads() -> str:
    """Return the stack of each thread under its name."""
    from oslo_reports.models.threading import StackTraceModel

    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        model = StackTraceModel(frame)
        model.set_current_view_type('text')
        title = f'------ {names.get(ident, "unknown")} (thread {ident}) ------'
        parts.append(f'{title}\n{model}')
    return '\n'.join(sorted(parts))


def _listed(look: Callable[[], Any]) -> Callable[[], Any]:
    """Return a generator of a section from a function that returns values."""

    def made() -> Any:
        from oslo_reports.models.with_default_views import (
            ModelWithDefaultViews,
        )
        from oslo_reports.views.text.generic import KeyValueView

        return ModelWithDefaultViews(look(), text_view=KeyValueView())

    return made


def _safe(generator: Callable[[], Any]) -> Callable[[], Any]:
    """Return a generator whose faults are no fault of the report."""

    def made() -> Any:
        try:
            return generator()
        except Exception as fault:
            return f'not available: {type(fault).__name__}: {fault}\n'

    return made
