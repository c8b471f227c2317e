"""The page on moving, followed line by line beside nova's own services."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from tests.support import page_commands, processes, shipped
from tests.support.databases import new_database
from tests.support.nova_cloud import HOSTS, QUORUM, NovaCloud
from tests.support.paths import PROGRAMS
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.functional,
    pytest.mark.broker,
    pytest.mark.db,
]
SMALL = ('small', 1, 512, 1)
# Options on queues that are not those of the compute service.
CLASSIC = 'amqp_durable_queues = false\nrabbit_quorum_queue = false\n'


class Operator:
    """Follows the page in a folder with its configuration."""

    def __init__(self, folder: pathlib.Path, cloud: NovaCloud) -> None:
        self.folder = folder
        self._cloud = cloud
        self._process: processes.Process | None = None
        self.config = folder / 'scheduler_service.conf'
        request = {'flavor': {'vcpus': 1, 'memory_mb': 64, 'root_gb': 1}}
        (folder / 'request.yaml').write_text(yaml.safe_dump(request))

    def write(self, database: str) -> None:
        """Write the shipped file with addresses of this cloud."""
        self.store = Store.connect(database)
        text = shipped.of_cloud(self._cloud, database, CLASSIC)
        self.config.write_text(text)

    def replace(self, old: str, new: str) -> None:
        text = self.config.read_text()
        assert text.count(old) == 1
        self.config.write_text(text.replace(old, new))

    def start(self) -> None:
        """Start the daemon, or restart it."""
        if self._process is not None:
            assert self._process.end() == 0
            self._process.remove()
        self._process = processes.launch(self.config)
        self._process.wait_for('Ready')

    def close(self) -> None:
        self.store.dispose()
        if self._process is not None:
            self._process.remove()

    def run(self, line: str) -> tuple[int, str, str]:
        """Run a line of the page; return (status, output, errors)."""
        if '--config-file' not in line:
            line = line.replace(
                ' ', ' --config-file scheduler_service.conf ', 1
            )
        done = subprocess.run(
            ['bash', '-c', line], cwd=self.folder,
            env={**os.environ, 'PATH': f'{PROGRAMS}:{os.environ["PATH"]}'},
            check=False, capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def decisions(self) -> list[Any]:
        """Return (outcome, request) of each decision, the oldest first."""
        made = schema.decisions.c
        query = sa.select(made.outcome, made.request_id).order_by(made.id)
        with self.store.reading() as conn:
            return list(conn.execute(query))


@pytest.fixture
def operator(tmp_path, cloud) -> Iterator[Operator]:
    made = Operator(tmp_path, cloud)
    yield made
    made.close()


def built(cloud: NovaCloud) -> None:
    """Have a server built, and delete it again."""
    (server,) = cloud.call('create', flavor=SMALL)
    over = 'active', 'error'
    wait_until(
        lambda: cloud.call('show', server=server)['state'] in over,
        pause_s=0.1,
    )
    found = cloud.call('show', server=server)
    assert found['state'] == 'active', found
    cloud.call('delete', server=server)
    wait_until(lambda: not cloud.placement.held(server))


def test_every_line_works_beside_the_queues_of_the_compute_service(
    cloud, operator, mariadb
):
    lines = page_commands.lines(page_commands.page('moving'))
    sync, check, hosts, select, report, listed, ping, show = lines
    operator.write(new_database(mariadb[1]))
    with cloud.scheduler():
        # Step 1.
        assert operator.run(sync)[0] == 0
        # Queues of another kind are found before the daemon starts.
        status, out, _ = operator.run(check)
        assert status == 2
        # A table, with lines that end elsewhere in each release of RabbitMQ.
        words = ' '.join(out.replace('|', ' ').split())
        assert 'in [scheduler] or in [compute]' in words
        operator.replace(CLASSIC, QUORUM)
        status, out, _ = operator.run(check)
        assert status == 0, out
        operator.start()
        built(cloud)
        # Step 2.
        text = operator.run(hosts)[1]
        assert all(host in text for host in HOSTS)
        status, text, err = operator.run(select)
        assert status == 0, err
        assert operator.decisions() == []
        operator.replace('\nenabled = false\n', '\nshadow = true\n')
        operator.start()

        def compared() -> re.Match[str] | None:
            # What comes before the shadow has its queue is not compared.
            built(cloud)
            text = operator.run(report)[1]
            return re.search(r'\d requests: [1-9]\d* on the same', text)

        wait_until(compared)
        operator.replace('\nshadow = true\n', '\nenabled = false\n')
        # Step 3: both take requests.
        operator.replace('\nenabled = false\n', '\nenabled = true\n')
        status, out, _ = operator.run(check)
        assert status == 0, out
        operator.start()

        def taken() -> list[Any]:
            built(cloud)
            return operator.decisions()

        wait_until(taken)
    # Step 4: ours alone.
    before = len(operator.decisions())
    built(cloud)
    *others, (outcome, request) = operator.decisions()
    assert len(others) == before
    assert outcome == 'chosen'
    assert 'chosen' in operator.run(listed)[1]
    assert operator.run(ping)[0] == 0
    *words, _ = show.split()
    assert 'chosen' in operator.run(' '.join([*words, request]))[1]
    # Back.
    with cloud.scheduler():
        operator.replace('\nenabled = true\n', '\nenabled = false\n')
        operator.start()
        built(cloud)
    assert len(operator.decisions()) == before + 1
