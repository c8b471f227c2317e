"""What the threads of a daemon execute of the package, and what they make."""

from __future__ import annotations

import collections
import dataclasses
import gc
import pathlib
import re
import threading
import types
from collections.abc import Iterable
from typing import Any, NamedTuple

import scheduler_service

_PACKAGE = 'scheduler_service.'
_ROOT = pathlib.Path(scheduler_service.__file__).parent
_PLUGINS = ('filters', 'weighers', 'request_filters')
# The name that code has which dataclasses generated.
_GENERATED = '__create_fn__.<locals>.'
# Larger lists and dictionaries hold what is kept between requests.
_LARGEST = 100


class Function(NamedTuple):
    """A function of the package, also a lambda or a comprehension.

    :ivar module: inside the package
    :ivar path: of its file, inside the package
    :ivar line: its first, since two lambdas may have one name
    """

    module: str
    path: str
    name: str
    line: int

    @property
    def label(self) -> str:
        """What the architecture page calls it."""
        return f'{self.module}:{self.name.removesuffix(".__init__")}'


def is_plugin_or_rpc(module: str) -> bool:
    """Whether a module, inside the package, belongs to plug-ins or the bus."""
    return module.partition('.')[0] in (*_PLUGINS, 'rpc', 'bus')


@dataclasses.dataclass
class Recording:
    """What was executed while a recorder was on.

    :ivar calls: (thread, function) in order, as often as called; also what
        was called before and returned
    :ivar made: (module, class) -> instances that were not there before
    """

    calls: list[tuple[str, Function]]
    made: dict[tuple[str, str], int]

    def threads(self) -> list[str]:
        """Return the threads, in order of their first calls."""
        return list(dict.fromkeys(thread for thread, _ in self.calls))

    def functions(self, thread: str) -> list[Function]:
        """Return what a thread executed, in order of first execution."""
        called = [function for name, function in self.calls if name == thread]
        return list(dict.fromkeys(called))

    def without(self, other: Recording) -> Recording:
        """Return this without what the same threads executed in another."""
        known = set(other.calls)
        left = [call for call in self.calls if call not in known]
        return Recording(left, self.made)

    def missing(self, rows: Iterable[tuple[str, str]]) -> list[str]:
        """Return the first row of each thread that is not called in turn.

        :param rows: (label of a function, thread)
        """
        # What is looked for is taken from these, with what comes before it.
        rest = {
            thread: iter(
                [one.label for name, one in self.calls if name == thread]
            )
            for thread in self.threads()
        }
        missing: dict[str, str] = {}
        for label, thread in rows:
            if thread in missing:
                continue
            if label not in rest.get(thread, iter(())):
                missing[thread] = label
        return list(missing.values())


class Recorder:
    """Records what each thread executes of the package, while it is on."""

    def __init__(self) -> None:
        self._on = False
        self._functions: dict[types.CodeType, Function] = {}
        self._calls: list[tuple[str, Function]] = []
        self._entered: set[tuple[str, Function]] = set()
        # Neither what they execute nor what they make belongs to a request.
        self._idle: set[tuple[str, Function]] | None = None
        self._known: dict[int, Any] = {}
        self._made: dict[int, Any] = {}

    def install(self) -> None:
        """See the threads that are started from now on."""
        threading.setprofile(self._profile)

    @staticmethod
    def uninstall() -> None:
        """See no threads but those that were started since ``install``."""
        threading.setprofile(None)

    def start(self, idle: Recording | None = None) -> None:
        """Record from now on.

        :param idle: what the threads execute without a request; note also
            which instances other functions have in hand, as an argument, a
            variable or a result, that were not there before
        """
        self._calls = []
        self._entered = set()
        self._idle = None
        if idle is not None:
            self._idle = set(idle.calls)
            self._known = _instances()
        self._on = True

    def recorded(self) -> Recording:
        """Return what was recorded so far."""
        made = collections.Counter(
            (
                type(one).__module__.removeprefix(_PACKAGE),
                type(one).__qualname__,
            )
            for one in list(self._made.values())
        )
        return Recording(list(self._calls), dict(made))

    def stop(self) -> Recording:
        """Record nothing more; return what was recorded."""
        self._on = False
        found = self.recorded()
        self._known, self._made = {}, {}
        return found

    def _profile(self, frame: types.FrameType, event: str, arg: Any) -> None:
        module = frame.f_globals.get('__name__', '')
        if not self._on or event not in ('call', 'return'):
            return
        if not module.startswith(_PACKAGE):
            return
        function = self._functions.get(frame.f_code)
        if function is None:
            function = _function(frame, module)
            self._functions[frame.f_code] = function
        call = (thread_name(), function)
        # What returns without a call has been waiting since before the start.
        if event == 'call' or call not in self._entered:
            self._entered.add(call)
            self._calls.append(call)
        if self._idle is not None and call not in self._idle:
            self._note([arg, *frame.f_locals.values()])

    def _note(self, values: list[Any], depth: int = 3) -> None:
        """Note the instances that are new, with those that they hold."""
        for value in values:
            if depth and isinstance(value, list | tuple | dict):
                held = value.values() if isinstance(value, dict) else value
                if len(held) < _LARGEST:
                    self._note(list(held), depth - 1)
            known = id(value) in self._known or id(value) in self._made
            if _is_ours(value) and not known:
                # This reference keeps its id from being used again.
                self._made[id(value)] = value
                self._note(_fields(value))


def thread_name() -> str:
    """Return the name of this thread without numbers."""
    return re.sub(r'[-_ ]*\d.*', '', threading.current_thread().name)


def _function(frame: types.FrameType, module: str) -> Function:
    code = frame.f_code
    name = code.co_qualname
    if name.startswith(_GENERATED):
        name = _generated(frame, name.removeprefix(_GENERATED))
    path = pathlib.Path(frame.f_globals['__file__']).relative_to(_ROOT)
    return Function(
        module.removeprefix(_PACKAGE), str(path), name, code.co_firstlineno
    )


def _generated(frame: types.FrameType, method: str) -> str:
    """Return a generated method with the class that it belongs to."""
    first = frame.f_locals[frame.f_code.co_varnames[0]]
    for base in type(first).__mro__:
        found = vars(base).get(method)
        if getattr(found, '__code__', None) is frame.f_code:
            return f'{base.__qualname__}.{method}'
    return method


def _is_ours(value: Any) -> bool:
    return str(type(value).__module__).startswith(_PACKAGE)


def _fields(value: Any) -> list[Any]:
    """Return what an instance holds."""
    slots = [
        name
        for base in type(value).__mro__
        for name in base.__dict__.get('__slots__', ())
    ]
    return [
        *(getattr(value, name, None) for name in slots),
        *getattr(value, '__dict__', {}).values(),
    ]


def _instances() -> dict[int, Any]:
    """Return all instances of our classes by their ids."""
    frozen = gc.get_freeze_count()
    # The collector does not list what a daemon has frozen.
    gc.unfreeze()
    found: dict[int, Any] = {}
    for tracked in gc.get_objects():
        waiting = [tracked, *gc.get_referents(tracked)]
        while waiting:
            one = waiting.pop()
            if _is_ours(one) and id(one) not in found:
                found[id(one)] = one
                # Nor what some structures hold.
                waiting += _fields(one)
    if frozen:
        gc.freeze()
    return found
