"""A mix of requests over RPC: rates, times and memory of one daemon or more.

``python -m benchmarks.mix --hosts 10000 --json`` starts a private RabbitMQ
and PostgreSQL, a daemon, and a stock server that does no work; the empty
call of that server is what the bus alone costs. The requests are those of
``benchmarks.mixes``.

``--base REV`` runs the daemon of an earlier commit, as it is installed, beside
this one's and prints ratios; ``--option GROUP.NAME=VALUE`` does so with a
daemon that has another option. All of them are up at once, each on its own
database and topic, and are called in turns. Every answer is checked: a
request may be refused only where no host can satisfy it.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import sys
import tempfile
from typing import Any

from benchmarks import bulk_load, common, mixes
from benchmarks.measured import DaemonSpec, MeasuredDaemon, running
from benchmarks.mix_sections import Effort, Measurement
from tests.support import servers
from tests.support.paths import PROGRAMS

SECTIONS = ('batch', 'callers', 'lifecycle', 'single', 'ping', 'memory')
# The rate for one request over and over is taken at this size.
REFERENCE_HOSTS = 10_000
# So many that a request comes again only after its instances are released.
REQUESTS = 40_000


def prepare(
    args: argparse.Namespace, hosts: int
) -> tuple[mixes.Mix, dict[str, Any]]:
    """Return the requests, and the inventory that they are for."""
    mix = mixes.cloud(REQUESTS, hosts, args.seed)
    document = mixes.inventory(bulk_load.originals(hosts), args.seed)
    return mix, {**document, 'server_groups': mix.server_groups}


class Cloud:
    """The servers, and the daemons that are started on them."""

    def __init__(
        self, args: argparse.Namespace, stack: contextlib.ExitStack
    ) -> None:
        self.args = args
        self.stack = stack
        self.mix, self.document = prepare(args, args.hosts)
        self.base = stack.enter_context(common.installed(args.base))
        _, self.server_url = stack.enter_context(servers.postgresql())
        _, self.bus = stack.enter_context(servers.rabbitmq())
        self.folder = pathlib.Path(
            stack.enter_context(tempfile.TemporaryDirectory())
        )
        stack.enter_context(
            common.process('benchmarks.noop_server', self.bus, ready='Ready:')
        )

    def specs(self) -> list[DaemonSpec]:
        """Return what to start, each on a database that its tree filled."""
        args = self.args
        filled = self.filled(args.hosts, self.document)
        specs = [DaemonSpec('this', filled)]
        if args.option:
            place, _, value = args.option.partition('=')
            group, _, name = place.rpartition('.')
            more = f'[{group}]\n{name} = {value}\n'
            copy = common.create_database(self.server_url, template=filled)
            specs.append(DaemonSpec('option', copy, config=more))
        if args.base:
            specs.append(self._of_base('base', args.hosts, self.document))
        return specs

    def start(self) -> tuple[list[MeasuredDaemon], MeasuredDaemon]:
        """Start all daemons; return those to measure, and the reference.

        The reference is an earlier commit's daemon if there is one, at the
        number of hosts that rates are compared at.
        """
        args = self.args
        daemons = [self._run(spec) for spec in self.specs()]
        if not args.base:
            return daemons, daemons[0]
        if args.hosts == REFERENCE_HOSTS:
            return daemons, daemons[-1]
        _, document = prepare(args, REFERENCE_HOSTS)
        name = f'base_at_{REFERENCE_HOSTS}_hosts'
        reference = self._of_base(name, REFERENCE_HOSTS, document)
        return daemons, self._run(reference)

    def _of_base(
        self, name: str, hosts: int, document: dict[str, Any]
    ) -> DaemonSpec:
        """Return a daemon of the earlier commit, with a number of hosts."""
        filled = self.filled(hosts, document, self.base)
        return DaemonSpec(name, filled, self.base)

    def filled(
        self,
        hosts: int,
        document: dict[str, Any],
        programs: pathlib.Path = PROGRAMS,
    ) -> str:
        """Return the URL of a database with a number of hosts."""
        url = common.create_database(self.server_url)
        config = common.write_config(self.folder, url, self.bus)
        bulk_load.load(config, url, hosts, document, programs)
        return url

    def _run(self, spec: DaemonSpec) -> MeasuredDaemon:
        return self.stack.enter_context(
            running(spec, self.bus, self.mix.requests)
        )


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument('--hosts', type=int, default=10_000)
    made.add_argument('--seed', type=int, default=1)
    made.add_argument('--base', help='earlier commit to compare with')
    made.add_argument(
        '--option',
        metavar='GROUP.NAME=VALUE',
        help='compare with a daemon that has another option',
    )
    made.add_argument(
        '--sections', nargs='+', choices=SECTIONS, default=SECTIONS
    )
    made.add_argument('--turns', type=int, default=8)
    made.add_argument(
        '--seconds', type=float, default=1.0, help='length of one turn'
    )
    made.add_argument(
        '--calls', type=int, default=500, help='of one caller, of each kind'
    )
    made.add_argument(
        '--memory',
        type=int,
        default=20_000,
        help='requests to look at memory after',
    )
    made.add_argument('--json', action='store_true')
    return made


def main() -> None:
    args = parser().parse_args()
    with contextlib.ExitStack() as stack:
        try:
            cloud = Cloud(args, stack)
        except ValueError as error:
            sys.exit(f'Skipped: {error}')
        effort = Effort(
            args.turns, args.seconds, 10 * args.hosts, args.calls, args.memory
        )
        measurement = Measurement(*cloud.start(), effort)
        for section in SECTIONS:
            if section in args.sections:
                getattr(measurement, section)()
        figures = {'hosts': args.hosts, **measurement.result()}
    common.show(figures, args.json)


if __name__ == '__main__':
    main()
