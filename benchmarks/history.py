"""The recording of what daemons saw: its size, and what reading it takes.

``python -m benchmarks.history --hosts 10000 --decisions 100000 --daemons 2``
starts a private RabbitMQ and PostgreSQL, and daemons that decide the requests
of ``benchmarks.mix``. Printed are the bytes of decisions and blocks with their
indexes for each decision, and with ``--base REV`` those of an earlier commit;
how long ``decision list`` and ``why`` take beyond ``scheduler-manage
--version``; and the times of single calls while nothing else happens, while
``--tidied`` MiB of old blocks are deleted, while a checkpoint is made of
``--instances``, and with that, the picture of the cloud and a ``why`` at once.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import pathlib
import random
import secrets
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import sqlalchemy as sa

from benchmarks import common, mix
from benchmarks.measured import BATCH, MeasuredDaemon
from benchmarks.rpc import Caller
from benchmarks.timing import count, spread
from scheduler_service.store.connection import Store
from scheduler_service.store.records import recordings
from tests.support import servers
from tests.support.paths import PROGRAMS

OFF, ON = '[history]\nkeep_days = 0\n', '[history]\nkeep_days = 7\n'
# How often each command is run, and how long single calls are looked at.
_COMMANDS, _CALLS_S = 7, 10.0
# Of a block that is to be deleted; a stretch has 64 of them.
_FILLER = 2**18
_FILL = sa.text(
    'INSERT INTO history (run, number, begins, size, created_at, data) '
    'SELECT :run, n, CAST(n % 64 = 1 AS int), :size, 0, :data '
    'FROM generate_series(1, :blocks) AS n'
)
_PLACE = sa.text(
    'INSERT INTO instances (uuid, host, node, state, document, created_at) '
    "SELECT md5(n::text)::uuid::text, host, node, 'reported', "
    '\'{"project_id": "p", "flavor": {"flavorid": "f"}}\', 0 '
    'FROM hosts, generate_series(1, :each) AS each, '
    'LATERAL (SELECT hosts.id * 1000000 + each AS n) AS numbers'
)


@dataclasses.dataclass
class Deployment:
    """Daemons on one database; the first one is called.

    :ivar port: of the first one's HTTP server
    """

    config: pathlib.Path
    database: str
    programs: pathlib.Path
    port: int
    daemons: list[MeasuredDaemon]

    def sizes(self, decisions: int) -> dict[str, float]:
        """Have requests decided; return the bytes of each decision."""
        while sum(each.decisions for each in self.daemons) < decisions:
            for each in self.daemons:
                count(each.batch, 2, 1.0, decisions // BATCH)
                each.release_old()
        # What waits to be stored.
        time.sleep(1)
        total = sum(each.decisions for each in self.daemons)
        found = {'decisions': total}
        for table in ('decisions', 'history'):
            query = f"SELECT pg_total_relation_size(to_regclass('{table}'))"
            size = self.ask(query)[0][0] or 0
            found[f'{table}, bytes each'] = round(size / total)
        return found

    def ask(self, query: str) -> list[Any]:
        """Return the rows of a query."""
        with connected(self.database) as conn:
            return [*conn.execute(sa.text(query))]

    def commands(self) -> dict[str, Any]:
        """Return how long commands take, in seconds."""
        rows = self.ask(
            'SELECT request_id FROM decisions WHERE run IS NOT NULL '
            f'ORDER BY random() LIMIT {_COMMANDS}'
        )
        empty = statistics.median(
            common.timed(partial(self.manage, '--version'))
            for _ in range(_COMMANDS)
        )
        listing = 'decision', 'list', '--project', 'project-1'
        return {
            name: spread([
                common.timed(partial(self.manage, *words)) - empty
                for words in made
            ])
            for name, made in (
                ('decision list, s', [listing] * _COMMANDS),
                ('why, s', [('why', row[0]) for row in rows]),
            )
        }  # fmt: skip

    def manage(self, *words: str) -> None:
        """Run a command; ``why`` may say that a configuration is gone."""
        subprocess.run(
            [self.programs / 'scheduler-manage', '--config-file', self.config,
             *words], check=True, capture_output=True,
            env=common.environment(),
        )  # fmt: skip

    def single(self, beside: Callable[[], None]) -> dict[str, float]:
        """Return the times of single calls while something is done, in ms."""
        thread = threading.Thread(target=beside)
        end, times = time.monotonic() + _CALLS_S, []
        thread.start()
        while thread.is_alive() or time.monotonic() < end:
            times.append(1000 * common.timed(self.daemons[0].claimed))
        thread.join()
        self.daemons[0].release_old()
        times.sort()
        return {
            'calls': len(times),
            'p50': round(statistics.median(times), 1),
            'p99': round(times[int(len(times) * 0.99)], 1),
            'most': round(times[-1], 1),
        }

    def tidy(self) -> None:
        """Delete what is old, as a daemon does."""
        store = Store.connect(self.database)
        stretch: Any = True
        while stretch is not None:
            with store.reading() as conn:
                stretch = recordings.excess(conn, 2**40, 7 * 86_400)
            while stretch is not None and store.write(
                partial(recordings.delete, stretch=stretch)
            ):
                pass
        store.dispose()

    def reload(self, *options: str) -> None:
        """Have the first daemon read its options, one after the other."""
        text = self.config.read_text()
        for more in options:
            self.config.write_text(f'{text}{more}')
            self.daemons[0].signal(signal.SIGHUP)
            time.sleep(2)
        self.config.write_text(text)

    def checkpoint(self) -> None:
        """Have the first daemon begin its recording anew."""
        number = 'SELECT count(*) FROM history WHERE begins > 0'
        before = self.ask(number)
        self.reload(OFF, ON)
        while self.ask(number) == before:
            time.sleep(0.1)

    def all_at_once(self) -> None:
        """Have a checkpoint, the picture of the cloud, and a ``why``."""
        (row,) = self.ask(
            'SELECT max(request_id) FROM decisions WHERE run > 0'
        )
        works = [
            threading.Thread(target=work)
            for work in (
                self.checkpoint,
                partial(self.manage, 'why', row[0]),
                self.picture,
            )
        ]
        for work in works:
            work.start()
        for work in works:
            work.join()

    def picture(self) -> None:
        """Open the page with the picture of the cloud, five times."""
        for _ in range(5):
            conn = http.client.HTTPConnection('127.0.0.1', self.port)
            conn.request('GET', '/cloud', headers={'Accept': 'text/html'})
            conn.getresponse().read()
            conn.close()


@contextlib.contextmanager
def connected(database: str) -> Iterator[sa.Connection]:
    """Give a transaction."""
    engine = sa.create_engine(database)
    with engine.begin() as conn:
        yield conn
    engine.dispose()


@contextlib.contextmanager
def deployed(
    cloud: mix.Cloud, number: int, name: str, programs: pathlib.Path
) -> Iterator[Deployment]:
    """Start daemons on a database that their tree filled."""
    hosts, document = cloud.args.hosts, cloud.document
    database = cloud.filled(hosts, document, programs)
    with connected(database) as conn:
        conn.execute(_PLACE, {'each': cloud.args.instances // hosts})
    topic, port = f'scheduler_{name}', servers.free_port()
    with contextlib.ExitStack() as stack:
        daemons, configs = [], []
        for at in range(number):
            folder = cloud.folder / f'{name}{at}'
            folder.mkdir()
            config = common.write_config(
                folder, database, cloud.bus, topic=topic
            )
            more = f'[http]\nbind_port = {port}\n' if not at else ''
            config.write_text(
                f'{config.read_text()}server = {name}{at}\n'
                f'decisions_kept = 1000000\n{more}'
            )
            process = stack.enter_context(common.daemon(config, programs))
            caller = stack.enter_context(
                contextlib.closing(Caller(cloud.bus, topic))
            )
            daemons.append(
                MeasuredDaemon(name, process, caller, cloud.mix.requests)
            )
            configs.append(config)
        yield Deployment(configs[0], database, programs, port, daemons)


def figures_of(args: argparse.Namespace, made: Deployment) -> dict[str, Any]:
    """Return the figures of this commit but the sizes."""
    figures = made.commands()
    figures['single, ms'] = made.single(lambda: None)
    blocks = args.tidied * 2**20 // _FILLER
    with connected(made.database) as conn:
        conn.execute(_FILL, {
            'run': random.randrange(2**60), 'size': _FILLER, 'blocks': blocks,
            'data': secrets.token_bytes(_FILLER),
        })  # fmt: skip
    figures['single while tidied, ms'] = made.single(made.tidy)
    # A checkpoint is had by two reloads, which take their time, too.
    reloads = partial(made.reload, ON, ON)
    figures['single while reloading, ms'] = made.single(reloads)
    figures['single at a checkpoint, ms'] = made.single(made.checkpoint)
    figures['single with all at once, ms'] = made.single(made.all_at_once)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--hosts', type=int, default=10_000)
    parser.add_argument('--decisions', type=int, default=100_000)
    parser.add_argument('--daemons', type=int, default=2)
    parser.add_argument('--instances', type=int, default=100_000)
    parser.add_argument('--tidied', type=int, default=2048, help='MiB')
    parser.add_argument('--base', help='earlier commit to compare sizes with')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        cloud = mix.Cloud(args, stack)
        if args.base:
            with deployed(cloud, args.daemons, 'base', cloud.base) as base:
                figures['base'] = base.sizes(args.decisions)
        made = stack.enter_context(
            deployed(cloud, args.daemons, 'this', PROGRAMS)
        )
        figures['this'] = made.sizes(args.decisions)
        figures |= figures_of(args, made)
    common.show(figures, args.json)


if __name__ == '__main__':
    main()
