"""Runs tests of nova's own suite, one by one; runs where nova is installed.

Arguments: the mode, the URL of the bus, a folder, and the interpreter of the
daemon. Each line of the input is the id of a test, each line of the output is
what became of it, in JSON. The log of a test that fails is in the folder.
"""

import importlib
import io
import json
import os
import pathlib
import sys
import time
import traceback
import unittest

import nova.tests.functional  # noqa: F401 - changes what tests need changed
from nova.tests.functional import integrated_helpers

_LOG_LENGTH = 150_000
_MOST_PATIENT = 4.0


class Patient:
    """Stands for the module ``time``; sleeps longer on a busy machine.

    Tests look for the state of a server ten times, half a second apart.
    """

    def __getattr__(self, name):
        return getattr(time, name)

    def sleep(self, seconds):
        """Sleep, as much longer as there is work for each processor."""
        load = os.getloadavg()[0] / os.cpu_count()
        time.sleep(seconds * min(max(load, 1.0), _MOST_PATIENT))


class Result(unittest.TestResult):
    """What became of a test: its status, and what it said."""

    def __init__(self):
        super().__init__()
        self.status, self.text, self.details = 'ok', '', {}

    def _take(self, status, err, details):
        if status != 'skip' or self.status == 'ok':
            self.status = status
        if err is not None:
            self.text += ''.join(traceback.format_exception(*err))
        for name, content in (details or {}).items():
            try:
                self.details[name] = content.as_text()
            except Exception as fault:
                self.details[name] = repr(fault)
        self.text += ''.join(
            text
            for name, text in self.details.items()
            if details and 'traceback' in name
        )

    def addError(self, test, err=None, details=None):
        self._take('error', err, details)

    def addFailure(self, test, err=None, details=None):
        self._take('fail', err, details)

    def addSkip(self, test, reason=None, details=None):
        self._take('skip', None, details)
        self.text += reason or ''

    def addExpectedFailure(self, test, err=None, details=None):
        self._take('xfail', err, details)

    def addUnexpectedSuccess(self, test, details=None):
        self._take('xpass', None, details)


class Worker:
    """Runs tests.

    :param in_place: the daemon that decides; None: nova-scheduler does
    :param folder: for logs
    """

    def __init__(self, in_place, folder):
        self._in_place = in_place
        self._folder = pathlib.Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def run(self, name):
        """Run a test; return what became of it, as JSON."""
        module, kind, method = name.rsplit('.', 2)
        test = getattr(importlib.import_module(module), kind)(method)
        result = Result()
        if self._in_place is not None:
            self._in_place.log.clear()
        explained = []
        # Before anything is cleaned up.
        test.addOnException(lambda _: explained or explained.append(
            self._explanation()
        ))  # fmt: skip
        began = time.monotonic()
        try:
            test.run(result)
        except Exception:
            result.status, result.text = 'error', traceback.format_exc()
        line = {
            'id': name,
            'status': result.status,
            's': round(time.monotonic() - began, 2),
            'why': _last_line(result.text),
        }
        if self._in_place is not None:
            self._in_place.end()
            line.update(self._said())
        if result.status not in ('ok', 'skip'):
            self._write_log(name, result, explained)
        return line

    def _explanation(self):
        try:
            return self._in_place and self._in_place.explain()
        except Exception as fault:
            return repr(fault)

    def _said(self):
        log = self._in_place.log
        unknown = [
            option for entry in log if entry[0] == 'start'
            for option in entry[1].get('unknown', ())
        ]  # fmt: skip
        return {
            'calls': sum(entry[0] == 'call' for entry in log),
            'unknown': sorted(set(unknown)),
        }

    def _write_log(self, name, result, explained):
        text = io.StringIO()
        text.write(f'{result.text}\n\n== EVENTS\n')
        for entry in self._in_place.log if self._in_place else ():
            text.write(json.dumps(entry, default=str)[:20000] + '\n')
        text.write('\n== EXPLANATION\n')
        text.write(json.dumps(explained, default=str, indent=1))
        text.write('\n== LOG\n')
        for key, said in result.details.items():
            if 'traceback' not in key:
                text.write(f'-- {key}\n{said[-_LOG_LENGTH:]}\n')
        # The name of a file is bounded, and the end says most.
        path = self._folder / f'{name[-180:]}.txt'
        path.write_text(text.getvalue())


def _last_line(text):
    """Return the last line of a traceback that is not indented."""
    for line in reversed(text.strip().splitlines()):
        if line.strip() and not line.startswith((' ', '\t')):
            return line[:400]
    return ''


def main(mode, bus, folder, python):
    """Run tests until the input ends."""
    answers = os.fdopen(os.dup(1), 'w', buffering=1)
    os.dup2(2, 1)
    in_place = None
    if mode != 'stock':
        # nova has to be patched for its tests first.
        import in_place as replacing

        in_place = replacing.InPlace(mode == 'fresh', bus, folder, python)
        replacing.install(in_place)
    integrated_helpers.time = Patient()
    worker = Worker(in_place, folder)
    for line in sys.stdin:
        answers.write(json.dumps(worker.run(line.strip())) + '\n')
    if in_place is not None:
        in_place.close()
    # nova's tests leave threads.
    os._exit(0)


if __name__ == '__main__':
    main(*sys.argv[1:])
