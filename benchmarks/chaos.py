"""Daemons under attack: callers, faults, and an audit straight from SQL.

``python -m benchmarks.chaos`` runs 3 daemons and 12 callers for 10 minutes on
PostgreSQL, then on MariaDB, then through a placement service, while daemons
are killed, stopped and cut off and servers restart. It prints what happened
and every row that is not what a caller was told, and fails where there is one.
Calls that timed out and claimed nothing, as a refused one may whose daemon was
killed between its acknowledgement and the reply, are counted as ``no claim``.

``python -m benchmarks.chaos placement`` has them claim in a real placement
service, whose database is on the same PostgreSQL, and which is killed as well.
In the end its allocations have to be those of our claims, one for one.

``python -m benchmarks.chaos kube`` has two daemons bind what a real
kube-scheduler places on 20 nodes with 2 devices, on PostgreSQL. With callers,
instances are placed on the same nodes. The programs of the control plane lie
beside the project: see ``tests.support.control_plane``.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import tempfile
from typing import Any

from benchmarks import common
from scheduler_service.store.records import daemons
from tests.rigs import chaos, kube_chaos, placement_chaos
from tests.support import clouds, control_plane, servers

WRONG = 'wrong', 'untrue', 'books', 'contradicted'
# Daemons that were killed are known to be silent by then.
QUIET_S = daemons.SILENT_S + 15
DATABASES = {'postgresql': servers.postgresql, 'mariadb': servers.mariadb}


def run(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run it on one database."""
    with (
        servers.rabbitmq() as (broker, bus),
        DATABASES[name]() as (database, base),
        clouds.cloud(base, bus, daemons=args.daemons) as cloud,
    ):
        return chaos.run(
            cloud,
            broker,
            database,
            args.callers,
            args.seconds,
            args.every,
            args.seed,
            quiet_s=QUIET_S,
        )


def run_placement(args: argparse.Namespace) -> dict[str, Any]:
    """Run it through a placement service."""
    with (
        servers.rabbitmq() as (broker, bus),
        servers.postgresql() as (database, base),
        placement_chaos.cloud(base, bus, args.daemons) as cloud,
    ):
        return chaos.run(
            cloud,
            broker,
            database,
            args.callers,
            args.seconds,
            args.every,
            args.seed,
            placement_chaos.PlacementCaller,
            (cloud.restart_placement,),
        )


def run_kube(args: argparse.Namespace) -> dict[str, Any]:
    """Run it beside a kube-scheduler."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        cluster = stack.enter_context(
            control_plane.cluster(pathlib.Path(folder))
        )
        database, base = stack.enter_context(servers.postgresql())
        broker, bus = None, 'inproc://'
        if args.callers:
            broker, bus = stack.enter_context(servers.rabbitmq())
        cloud = stack.enter_context(
            kube_chaos.cloud(
                base, bus, cluster, args.daemons, shared=bool(args.callers)
            )
        )
        return kube_chaos.run(
            cloud,
            args.seed,
            broker=broker,
            database=database,
            callers=args.callers,
            seconds=args.seconds,
            every=args.every,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        'form',
        nargs='*',
        choices=[*DATABASES, 'placement', 'kube', []],
        default=[],
    )
    parser.add_argument('--daemons', type=int, default=3)
    parser.add_argument('--callers', type=int, default=12)
    parser.add_argument('--seconds', type=float, default=600)
    parser.add_argument(
        '--every', type=float, default=3, help='seconds between faults'
    )
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    wrong = False
    for name in args.form or (*DATABASES, 'placement'):
        if name == 'placement':
            figures = run_placement(args)
        elif name == 'kube':
            figures = run_kube(args)
        else:
            figures = run(name, args)
        wrong |= any(figures.get(one) for one in WRONG)
        common.show({name: figures}, args.json)
    raise SystemExit(wrong)


if __name__ == '__main__':
    main()
