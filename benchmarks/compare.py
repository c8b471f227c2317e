"""Any benchmark on this commit beside an earlier one, in turns.

``python -m benchmarks.compare --base HEAD~1 passes`` runs
``benchmarks.passes --json`` in both trees and prints, for each figure, this
one's and its ratio to the earlier one's.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

_HERE = pathlib.Path(__file__).parents[1]


def run(tree: pathlib.Path, name: str, more: list[str]) -> Any:
    """Return the figures of a benchmark in a tree."""
    done = subprocess.run(
        [sys.executable, '-m', f'benchmarks.{name}', '--json', *more],
        cwd=tree, check=True, capture_output=True, text=True,
        env={**os.environ, 'PYTHONPATH': str(tree)},
    )  # fmt: skip
    return json.loads(done.stdout[done.stdout.index('{') :])


def leaves(figures: Any, place: str = '') -> dict[str, float]:
    """Return the numbers of a document by their place in it."""
    if isinstance(figures, dict):
        found: dict[str, float] = {}
        for key, value in figures.items():
            found.update(leaves(value, f'{place}.{key}' if place else key))
        return found
    if isinstance(figures, int | float) and not isinstance(figures, bool):
        return {place: float(figures)}
    return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('benchmark')
    parser.add_argument('--base', default='HEAD~1')
    parser.add_argument('--turns', type=int, default=3)
    args, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder) / 'base'
        git = ['git', '-C', str(_HERE), 'worktree']
        subprocess.run(
            [*git, 'add', '--detach', str(base), args.base],
            check=True, capture_output=True,
        )  # fmt: skip
        try:
            both: list[list[dict[str, float]]] = [[], []]
            for _ in range(args.turns):
                for told, tree in zip(both, (_HERE, base), strict=True):
                    told.append(leaves(run(tree, args.benchmark, more)))
        finally:
            subprocess.run(
                [*git, 'remove', '--force', str(base)],
                check=True, capture_output=True,
            )  # fmt: skip
    for place in both[0][0]:
        now, then = (
            statistics.median(one.get(place, 0.0) for one in told)
            for told in both
        )
        ratio = f'{now / then:.2f}' if then else '-'
        print(f'{place:44} {now:12.3f}  x {ratio}')


if __name__ == '__main__':
    main()
