#!/usr/bin/env python3
"""Run mutants of the code that keeps promises against the tests that cover it.

A mutant is the source with one small change. A test that fails kills it; a
mutant that lives shows what no test notices. First every test runs once, to
learn which lines it executes. Then each mutant runs with the tests that
execute its line, the most specific ones first, until one fails.
"""

from __future__ import annotations

import argparse
import ast
import collections
import concurrent.futures
import contextlib
import functools
import json
import os
import pathlib
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tools')]

import mutants  # noqa: E402
from mutants import Mutant  # noqa: E402

from tests.support.paths import SHARED  # noqa: E402
from tests.support.shared_servers import SharedServers  # noqa: E402

# Room -> the files in it.
ROOMS = {
    'claims': (
        'store/claims/*.py', 'store/connection.py', 'engine/finishing.py',
        'engine/host_stages.py', 'engine/selecting.py', 'columns/overlay.py',
    ),
    'acknowledgement': (
        'rpc/server.py', 'rpc/delivery.py', 'bus/replies.py',
        'bus/consumer.py',
    ),
    'quarantine': (
        'store/ports/redeliveries.py', 'store/records/quarantine.py',
    ),
    'policy': (
        'policies.py', 'rpc/authorization.py', 'request_context.py',
    ),
    'masks': (
        'filters/*.py', 'filters/hosts/*.py', 'pipeline/filtering.py',
        'pipeline/mandatory_filters.py', 'pipeline/capacity_check.py',
    ),
}  # fmt: skip
# Tests of one mutant end after so many seconds, as measured without it.
_BUDGET_S = 120.0
_START_S = 30.0
_PYTEST = (
    '-m', 'pytest', '-q', '--no-header', '-p', 'no:cacheprovider',
    '--tb', 'no', '-m', 'not slow',
)  # fmt: skip
Tests = dict[str, dict[str, object]]


def files() -> dict[str, str]:
    """Return path -> room of every file that is mutated.

    :raises LookupError: a room names a file that is not there
    """
    found = {}
    for room, patterns in ROOMS.items():
        for pattern in patterns:
            paths = sorted((ROOT / 'scheduler_service').glob(pattern))
            if not paths:
                raise LookupError(f'{room}: there is no {pattern}')
            for path in paths:
                if path.name != '__init__.py':
                    found[str(path.relative_to(ROOT))] = room
    return found


def measure(path: pathlib.Path, processes: int, tests: Sequence[str]) -> None:
    """Run all tests, and store which lines of our files each executes."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix='mutation-'))
    env = {
        **os.environ,
        'PYTHONPATH': f'{ROOT}{os.pathsep}{ROOT / "tools"}',
        'LINES_FOLDER': str(folder),
        'LINES_FILES': os.pathsep.join(files()),
    }
    subprocess.run(
        [sys.executable, *_PYTEST, '-p', 'executed_lines', '--timeout', '900',
         '-n', str(processes), '--dist', 'worksteal', *tests],
        cwd=ROOT, env=env, check=False,
    )  # fmt: skip
    outcomes: Tests = {}
    for part in folder.glob('*.json'):
        outcomes.update(json.loads(part.read_text()))
    shutil.rmtree(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(outcomes))


@functools.cache
def importers(path: str) -> list[str]:
    """Return the files, of those that are mutated, that import one."""
    module = path.removesuffix('.py').replace('/', '.')
    package, _, name = module.rpartition('.')

    def imports(node: ast.AST) -> bool:
        if not isinstance(node, ast.ImportFrom):
            return False
        names = [alias.name for alias in node.names]
        return node.module == module or (
            node.module == package and name in names
        )

    return [
        other
        for other in files()
        if any(map(imports, ast.walk(ast.parse((ROOT / other).read_text()))))
    ]


def covering(mutant: Mutant, tests: Tests) -> list[str]:
    """Return tests that execute a mutant's line, in the order to run them.

    Those of the module's own test file first, then those that execute the
    fewest lines beside it; as many as fit into the budget. Of a test file
    named after the module all are run that use it: what is kept of an earlier
    test, such as a parsed document, is not executed again. What is executed
    by the import alone, such as a statement in SQL, is used by the tests that
    execute a module that imports it.
    """
    mirror = f'test_{pathlib.Path(mutant.path).stem}.py'
    users = importers(mutant.path) if mutant.lines.start == 1 else []
    candidates = []
    for name, test in tests.items():
        executed: dict[str, list[int]] = test['lines']  # type: ignore[assignment]
        lines = executed.get(mutant.path, ())
        own = mirror in name
        executes = (
            (own and lines)
            or not set(mutant.lines).isdisjoint(lines)
            or any(executed.get(user) for user in users)
        )
        if test['passed'] and executes:
            total = sum(map(len, executed.values()))
            candidates.append((not own, total, test['seconds'], name))
    chosen, spent = [], 0.0
    for _, _, seconds, name in sorted(candidates):
        if not chosen or spent + float(seconds) <= _BUDGET_S:
            chosen.append(name)
            spent += float(seconds)
    return chosen


def sample(
    made: dict[str, list[Mutant]], count: int, seed: int
) -> list[Mutant]:
    """Return mutants, as many of each room as there are."""
    rng = random.Random(seed)  # noqa: S311 - a sample, not a secret
    chosen: list[Mutant] = []
    rooms = sorted(made.values(), key=len)
    for number, of_room in enumerate(rooms):
        share = (count - len(chosen)) // (len(rooms) - number)
        chosen += rng.sample(of_room, min(share, len(of_room)))
    rng.shuffle(chosen)
    return chosen


class Trees:
    """Copies of the tree, one for each process."""

    def __init__(self, count: int) -> None:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix='mutation-'))
        self.free: queue.SimpleQueue[pathlib.Path] = queue.SimpleQueue()
        # Recorded cases lie beside the project, and are looked for there.
        (self.folder / SHARED.parent.name).symlink_to(SHARED.parent)
        listed = subprocess.run(
            ['git', 'ls-files', '-co', '--exclude-standard'],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        for number in range(count):
            tree = self.folder / str(number)
            for name in listed:
                if (ROOT / name).is_file():
                    (tree / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / name, tree / name)
            self.free.put(tree)

    def remove(self) -> None:
        """Remove the copies."""
        shutil.rmtree(self.folder, ignore_errors=True)


def run(
    mutant: Mutant, names: Sequence[str], trees: Trees, servers: str
) -> str:
    """Return what became of a mutant: killed, timeout or survived.

    Or ``error``, where its tests cannot be run without it either.
    """
    tree = trees.free.get()
    path = tree / mutant.path
    source = path.read_text()
    try:
        path.write_text(mutant.source)
        status = _run_tests(tree, names, servers)
        path.write_text(source)
        if status in (0, 1, None):
            return {0: 'survived', 1: 'killed', None: 'timeout'}[status]
        # Not even collected, be it for the mutant or for another reason.
        again = _run_tests(tree, names, servers)
        return 'error' if again else 'killed'
    finally:
        path.write_text(source)
        trees.free.put(tree)


def _run_tests(
    tree: pathlib.Path, names: Sequence[str], servers: str
) -> int | None:
    """Return the exit status of pytest; None: it did not end in time."""
    env = {
        **os.environ,
        'PYTHONPATH': str(tree),
        'PYTHONDONTWRITEBYTECODE': '1',
        'SCHEDULER_TEST_SERVERS': servers,
    }
    process = subprocess.Popen(
        [sys.executable, *_PYTEST, '-x', '--timeout', '60', *names],
        cwd=tree, env=env, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        return process.wait(_START_S + 3 * _BUDGET_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Also the daemons that its tests started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_all(
    chosen: Sequence[Mutant], tests: Tests, processes: int, until: float
) -> Iterator[tuple[Mutant, str]]:
    """Run mutants; yield what became of each.

    :param until: monotonic time after which no more is started
    """
    trees, servers = Trees(processes), SharedServers()
    address = servers.listen()

    def outcome_of(mutant: Mutant) -> str:
        if time.monotonic() > until:
            return 'not run'
        names = covering(mutant, tests)
        if not names:
            return 'not covered'
        return run(mutant, names, trees, address)

    try:
        with concurrent.futures.ThreadPoolExecutor(processes) as pool:
            running = {
                pool.submit(outcome_of, mutant): mutant for mutant in chosen
            }
            for done in concurrent.futures.as_completed(running):
                yield running[done], done.result()
    finally:
        servers.close()
        trees.remove()


def report(
    results: Sequence[tuple[Mutant, str]], rooms: dict[str, str]
) -> float:
    """Print what became of the mutants; return the share that was killed."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(
        collections.Counter
    )
    for mutant, outcome in results:
        counts[rooms[mutant.path]][outcome] += 1
        counts['all'][outcome] += 1
    for room, counter in counts.items():
        print(room, dict(counter))
    alive = [
        (mutant, outcome)
        for mutant, outcome in results
        if outcome in ('survived', 'not covered', 'error')
    ]
    for mutant, outcome in sorted(alive):
        print(f'{mutant.path}:{mutant.line}: {outcome}: {mutant.change}')
    killed = counts['all']['killed'] + counts['all']['timeout']
    return killed / max(1, killed + len(alive))


def main() -> int:
    """Return 0 where enough mutants were killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--count', type=int, default=300)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--minutes', type=float, default=60.0)
    parser.add_argument('--processes', type=int, default=2)
    parser.add_argument('--room', choices=ROOMS, help='only this one')
    parser.add_argument('--at', help='only mutants at PATH:LINE')
    parser.add_argument(
        '--lines', type=pathlib.Path, default=ROOT / 'build/lines.json',
        help='where executed lines are kept; measured if it is absent',
    )  # fmt: skip
    parser.add_argument(
        '--tests', nargs='*', default=['tests'],
        help='what is measured: files and folders of tests',
    )  # fmt: skip
    args = parser.parse_args()
    started = time.monotonic()
    if not args.lines.exists():
        measure(args.lines, args.processes, args.tests)
    tests = json.loads(args.lines.read_text())
    rooms = files()
    made: dict[str, list[Mutant]] = collections.defaultdict(list)
    for path, room in rooms.items():
        for mutant in mutants.of(path, (ROOT / path).read_text()):
            at = f'{mutant.path}:{mutant.line}'
            if args.room in (None, room) and args.at in (None, at):
                made[room].append(mutant)
    chosen = sample(made, args.count, args.seed)
    print(f'{len(chosen)} mutants, {len(tests)} tests')
    results = []
    until = started + 60 * args.minutes
    for mutant, outcome in run_all(chosen, tests, args.processes, until):
        results.append((mutant, outcome))
        print(
            f'{len(results)} {outcome}: {mutant.path}:{mutant.line}: '
            f'{mutant.change}',
            flush=True,
        )
    share = report(results, rooms)
    minutes = (time.monotonic() - started) / 60
    print(f'killed: {share:.1%}, in {minutes:.0f} minutes')
    return 0 if share >= 0.9 else 1


if __name__ == '__main__':
    sys.exit(main())
