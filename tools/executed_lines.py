"""A plug-in of pytest: which lines of some files each test executes.

``LINES_FILES`` names the files, ``LINES_FOLDER`` where each process writes
what its tests executed. The test that runs gets what all threads execute.
What functions keep of earlier tests is forgotten before each.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import sys
import threading
import types
from typing import Any

import pytest

_ROOT = pathlib.Path.cwd()
_FILES = {
    str(_ROOT / name): name
    for name in os.environ['LINES_FILES'].split(os.pathsep)
}
_tests: dict[str, dict[str, Any]] = {}
_current: dict[str, set[int]] = collections.defaultdict(set)


def _trace(frame: types.FrameType, event: str, argument: Any) -> Any:
    """Trace a function that is called, if it is in one of the files."""
    name = _FILES.get(frame.f_code.co_filename)
    if name is None:
        return None
    lines = _current[name]
    lines.add(frame.f_lineno)

    def local(frame: types.FrameType, event: str, argument: Any) -> Any:
        _current[name].add(frame.f_lineno)
        return local

    return local


def pytest_sessionstart() -> None:
    """Trace all threads."""
    threading.settrace(_trace)
    sys.settrace(_trace)


def _clear_caches() -> None:
    """Have functions that keep their results execute their lines again."""
    for name, module in list(sys.modules.items()):
        if name.startswith('scheduler_service'):
            for value in list(vars(module).values()):
                if hasattr(value, 'cache_clear'):
                    value.cache_clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Any:
    """Collect the lines of one test, with its fixtures."""
    _clear_caches()
    _current.clear()
    _tests[item.nodeid] = {'seconds': 0.0, 'passed': True}
    done = yield
    _tests[item.nodeid]['lines'] = {
        name: sorted(lines) for name, lines in list(_current.items())
    }
    return done


def pytest_runtest_logreport(report: Any) -> None:
    """Add up how long a test takes, and note whether it passed."""
    test = _tests.get(report.nodeid)
    if test is not None:
        test['seconds'] += report.duration
        if not report.passed:
            test['passed'] = False


def pytest_sessionfinish() -> None:
    """Write what was found."""
    sys.settrace(None)
    folder = pathlib.Path(os.environ['LINES_FOLDER'])
    found = {name: test for name, test in _tests.items() if 'lines' in test}
    (folder / f'{os.getpid()}.json').write_text(json.dumps(found))
