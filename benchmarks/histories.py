"""What callers are told, explained: is there an order that gives it all?

``python -m benchmarks.histories postgresql`` runs 3 daemons and 10 callers
for a minute. They select, move, confirm, drop, release and repeat the same 17
instances on 4 hosts with little room, some of them in server groups, while
hosts report these instances and the tables are read again and again, each
time in one snapshot. Between these each caller has an instance of its own for
a while: it is released just after its selection was sent, selected again
while it is released, moved without its group, or asked for again by a caller
that waits for two seconds only, or it takes classes that hosts and an
aggregate offer only at times. Afterwards an order of each instance's
operations is searched that explains all answers. It prints what was wrong,
and fails where anything is. Calls that timed out and claimed nothing are
counted apart.

``--slow`` puts the database behind a line on which nothing travels for 2.0 to
2.6 seconds, again and again; ``--faults`` kills daemons and restarts the
servers meanwhile; ``--only again stray`` has callers do nothing else; ``--base
REV`` runs the daemons of an earlier commit.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks import common, slow_line
from tests.rigs import chaos, histories
from tests.support import clouds, servers
from tests.support.databases import new_database

WRONG = ('wrong_samples', 'without_order', 'gave_up', 'untrue')


@contextlib.contextmanager
def sqlite() -> Iterator[tuple[None, str]]:
    """Yield no server, and the URL of a folder for database files."""
    with tempfile.TemporaryDirectory() as folder:
        yield None, f'sqlite:///{folder}/'


DATABASES: dict[str, Any] = {
    'postgresql': servers.postgresql,
    'mariadb': servers.mariadb,
    'sqlite': sqlite,
}


@contextlib.contextmanager
def started(
    args: argparse.Namespace, base: str, bus: str
) -> Iterator[clouds.Cloud]:
    """Run daemons of this tree, or of an earlier commit, on the hosts."""
    url = new_database(base)
    with (
        common.installed(args.base) as programs,
        tempfile.TemporaryDirectory() as folder,
    ):
        config = common.write_config(pathlib.Path(folder), url, bus)
        common.import_inventory(config, histories.inventory(), programs)
        way = slow_line.through(url) if args.slow else None
        with (
            way or contextlib.nullcontext('') as near,
            # Daemons of this tree are forked, which is faster.
            clouds.running(
                url,
                bus,
                args.daemons,
                programs=programs if args.base else None,
                way=near,
            ) as cloud,
        ):
            yield cloud


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run it on one database."""
    with (
        servers.rabbitmq() as (broker, bus),
        DATABASES[args.database]() as (database, base),
        started(args, base, bus) as cloud,
    ):
        disturb = functools.partial(
            chaos.disturb, cloud, broker, database,
            args.seconds, args.every, args.seed,
        )  # fmt: skip
        return histories.run(
            cloud,
            args.seconds,
            args.callers,
            args.seed,
            disturb if args.faults else None,
            kinds=args.only,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('database', choices=DATABASES)
    parser.add_argument('--daemons', type=int, default=3)
    parser.add_argument('--callers', type=int, default=10)
    parser.add_argument('--seconds', type=float, default=60)
    parser.add_argument(
        '--faults', action='store_true', help='kill and restart meanwhile'
    )
    parser.add_argument(
        '--every', type=float, default=3, help='seconds between faults'
    )
    parser.add_argument(
        '--slow', action='store_true', help='have the database stall at times'
    )
    parser.add_argument(
        '--only', nargs='+', choices={*histories.KINDS}, metavar='KIND',
        default=histories.KINDS, help='what callers do',
    )  # fmt: skip
    parser.add_argument('--base', help='earlier commit to run daemons of')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    figures = run(args)
    common.show(figures, args.json)
    raise SystemExit(any(figures[one] for one in WRONG))


if __name__ == '__main__':
    main()
