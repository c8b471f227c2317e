"""Any benchmark on this commit beside an earlier one, in turns.

``python -m benchmarks.compare --base HEAD~1 passes`` runs
``benchmarks.passes --json`` in both trees and prints, for each figure, this
one's and its ratio to the earlier one's. ``benchmarks.mix`` compares by
itself, with both daemons up at once.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
from typing import Any

from benchmarks import common
from tests.support import wheels
from tests.support.paths import PROGRAMS, ROOT


def run(
    programs: pathlib.Path, tree: pathlib.Path, name: str, more: list[str]
) -> Any:
    """Return the figures of a benchmark in a tree.

    :param programs: of the environment that the tree is installed in
    """
    done = subprocess.run(
        [programs / 'python3', '-m', f'benchmarks.{name}', '--json', *more],
        cwd=tree, check=True, capture_output=True, text=True,
        env=common.environment(),
    )  # fmt: skip
    return json.loads(done.stdout[done.stdout.index('{') :])


def leaves(figures: Any, place: str = '') -> dict[str, float]:
    """Return the numbers of a document by their place in it."""
    if isinstance(figures, dict):
        numbers: dict[str, float] = {}
        for key, value in figures.items():
            numbers.update(leaves(value, f'{place}.{key}' if place else key))
        return numbers
    if isinstance(figures, int | float) and not isinstance(figures, bool):
        return {place: float(figures)}
    return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('benchmark')
    parser.add_argument('--base', default='HEAD~1')
    parser.add_argument('--turns', type=int, default=3)
    args, more = parser.parse_known_args()
    both: list[list[dict[str, float]]] = [[], []]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        base = wheels.install_commit(args.base, folder), folder / 'source'
        trees = (PROGRAMS, ROOT), base
        for _ in range(args.turns):
            for runs, tree in zip(both, trees, strict=True):
                runs.append(leaves(run(*tree, args.benchmark, more)))
    for place in both[0][0]:
        now, then = (
            statistics.median(one.get(place, 0.0) for one in runs)
            for runs in both
        )
        ratio = f'{now / then:.2f}' if then else '-'
        print(f'{place:44} {now:12.3f}  x {ratio}')


if __name__ == '__main__':
    main()
