"""Nova's own functional tests, with a daemon in place of its scheduler.

``python -m tools.nova_functional fresh`` runs all that are listed, on a
private RabbitMQ, and names those that pass with nova-scheduler and not with
the daemon. ``shipped`` gives the daemon the intervals that it is shipped with,
and runs fewer; ``stock`` is nova alone. A test that fails is run again, alone,
and counts by that. It takes 20 minutes of two cores; with the same ``--out``
it goes on where it stopped. Fails if a test differs that
``tests/interop/nova_functional/differences.txt`` does not explain.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

from tests.support import nova_functional as rig


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('mode', choices=rig.MODES)
    parser.add_argument(
        '--ids', type=pathlib.Path, help='a file of tests, one a line'
    )
    parser.add_argument(
        '--out',
        type=pathlib.Path,
        default=pathlib.Path('build/nova_functional'),
        help='the folder for results and logs',
    )
    parser.add_argument('--workers', type=int, default=2)
    return parser.parse_args()


def _names(arguments: argparse.Namespace) -> list[str]:
    if arguments.ids is not None:
        return arguments.ids.read_text().split()
    return rig.ids('shipped.txt' if arguments.mode == 'shipped' else 'ids.txt')


def _read(path: pathlib.Path) -> dict[str, dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {one['id']: one for one in map(json.loads, lines)}


def _run(
    runner: rig.Runner, mode: str, names: Iterable[str], out: pathlib.Path
) -> list[dict[str, Any]]:
    """Run those that have no result yet; return the results of all."""
    path = out / f'{mode}.jsonl'
    have = _read(path)
    with path.open('a', buffering=1) as file:

        def done(result: dict[str, Any]) -> None:
            file.write(json.dumps(result) + '\n')
            print(result['status'], result['id'], result['why'][:160])

        runner.run(mode, [name for name in names if name not in have], done)
    have = _read(path)
    return [have[name] for name in names]


def main() -> int:
    """Run the tests; return the exit status."""
    arguments = _arguments()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with rig.bus() as url:
        runner = rig.Runner(url, out / 'logs', arguments.workers)
        results = _run(runner, arguments.mode, _names(arguments), out)
        failed = [one for one in results if one['status'] not in rig.PASSED]
        counts = collections.Counter(one['status'] for one in results)
        print(len(results), 'tests:', dict(counts))
        if arguments.mode == 'stock':
            return 0
        stock = _run(runner, 'stock', [one['id'] for one in failed], out)
    causes, unexplained = rig.causes(), 0
    for one in stock:
        differs = one['status'] == 'ok'
        cause = causes.get(one['id']) if differs else 'fails with nova alone'
        unexplained += cause is None
        print('differs' if differs else 'same', one['id'], '-', cause)
    return 1 if unexplained else 0


if __name__ == '__main__':
    sys.exit(main())
