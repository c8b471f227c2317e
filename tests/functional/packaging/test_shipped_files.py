"""Every command works with the shipped file, and a daemon with either one.

Only the addresses of servers are put in; everything else is as an operator
gets it.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import pytest

from scheduler_service.cmd import manage
from tests.support import processes, servers
from tests.support.databases import new_database
from tests.support.waiting import LIMIT_S

pytestmark = [pytest.mark.functional, pytest.mark.broker, pytest.mark.db]

ETC = pathlib.Path(__file__).parents[3] / 'etc' / 'scheduler_service'
INSTANCE = str(uuid.uuid4())
GROUP = str(uuid.uuid4())
ONE_INSTANCE = {
    'request_id': 'req-one',
    'instance_uuids': [INSTANCE],
    'flavor': {'vcpus': 1, 'memory_mb': 512, 'root_gb': 1},
}
# Commands with their exit status, in an order in which each has something to
# work on.
BEFORE_THE_DAEMON = [
    ('db sync', 0),
    ('db check', 0),
    ('db version', 0),
    ('policy check', 0),
    ('configuration check FOLDER/service.conf', 0),
    ('completion bash', 0),
    ('inventory check ETC/inventory.yaml', 0),
    ('inventory diff ETC/inventory.yaml', 1),
    ('inventory import ETC/inventory.yaml', 0),
    ('inventory diff ETC/inventory.yaml', 0),
    ('inventory show', 0),
    ('inventory export', 0),
    ('pool list', 0),
    ('pool create fresh --attribute a=b', 0),
    ('pool set fresh a=c', 0),
    ('pool delete fresh', 0),
    ('host list', 0),
    ('host show compute-1', 0),
    ('host drain compute-1 --plan', 0),
    ('capacity', 0),
    ('capacity --flavor ETC/request.yaml --by host', 0),
    ('host disable compute-1 --reason test', 0),
    ('host enable compute-1', 0),
    ('host remove compute-4', 0),
    ('aggregate list', 0),
    ('aggregate create fresh', 0),
    ('aggregate set fresh a=b', 0),
    ('aggregate add-host fresh compute-1', 0),
    ('aggregate remove-host fresh compute-1', 0),
    ('aggregate delete fresh', 0),
    ('server-group list', 0),
    (f'server-group create fresh --uuid {GROUP}', 0),
    (f'server-group delete {GROUP}', 0),
]
# Those that wait for the reply of a daemon.
CALLS = [
    'ping',
    'top --count 1',
    'select --request ETC/request.yaml --explain',
    'select --request ETC/request.yaml --host compute-1',
    'select --request FOLDER/one.json',
    'zone schedule --request ETC/zone.yaml --explain',
]
AFTER_THE_CALLS = [
    ('claim list', 0),
    (f'claim show {INSTANCE}', 0),
    (f'claim confirm {INSTANCE}', 0),
    (f'claim drop-move {INSTANCE}', 1),
    (f'claim release {INSTANCE}', 0),
    ('decision show req-one', 0),
    ('why req-one', 0),
    ('why req-one --host compute-1', 0),
    ('history check', 0),
    ('history daemons', 0),
    ('replay --config ETC/scheduler_service.conf', 0),
    ('history host compute-1', 0),
    (f'history instance {INSTANCE}', 0),
    ('decision list', 0),
    ('rates', 0),
    ('shadow', 0),
    ('db purge --decisions --before 30d', 0),
    ('zone list', 0),
    ('daemon list', 0),
    ('configuration show', 0),
    ('configuration list', 0),
    ('configuration log', 0),
    ('configuration diff none', 1),
    ('audit', 0),
    ('message list', 0),
    ('message show none', 1),
    ('message retry none', 1),
    ('message drop none', 1),
    ('select --local --dry-run --request ETC/request.yaml', 0),
]
RELEASE = f'release {INSTANCE}'


def with_addresses(text: str, bus: str, database: str) -> str:
    """Put the addresses of servers into a configuration file."""
    for option, value in (('transport_url', bus), ('connection', database)):
        text, count = re.subn(
            rf'(?m)^#?{option} = .*$', f'{option} = {value}', text, count=1
        )
        assert count == 1, option
    return text


@pytest.fixture
def bus(rabbitmq) -> str:
    """An empty virtual host: the files declare different kinds of queues."""
    return servers.new_vhost(*rabbitmq)


@pytest.fixture
def words(tmp_path) -> Callable[[str], list[str]]:
    """Give a function that returns the words of a command line."""
    (tmp_path / 'one.json').write_text(json.dumps(ONE_INSTANCE))

    def split(command: str) -> list[str]:
        named = [
            word.replace('ETC', str(ETC)).replace('FOLDER', str(tmp_path))
            for word in command.split()
        ]
        return ['--config-file', str(tmp_path / 'service.conf'), *named]

    return split


@contextlib.contextmanager
def daemon(folder: pathlib.Path) -> Iterator[None]:
    """Run a daemon, which has declared its queues when this goes on."""
    process = processes.launch(folder / 'service.conf')
    try:
        process.wait_for('Ready:')
        yield
        assert process.end() == 0
    finally:
        process.remove()


def call(arguments: list[str]) -> None:
    """Run a command in a process of its own; it has to succeed.

    What an earlier one left in this process could help it.
    """
    done = subprocess.run(
        [sys.executable, '-m', 'scheduler_service.cmd.manage', *arguments],
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    assert 'Traceback' not in done.stderr


@pytest.mark.slow
def test_every_command_works_with_the_shipped_file(
    bus, postgresql, tmp_path, words
):
    text = (ETC / 'scheduler_service.conf').read_text()
    database = new_database(postgresql[1])
    config = tmp_path / 'service.conf'
    config.write_text(with_addresses(text, bus, database))
    for command, status in BEFORE_THE_DAEMON:
        assert manage.main(words(command)) == status, command
    with daemon(tmp_path):
        for command in CALLS:
            assert manage.main(words(command)) == 0, command
        for command, status in AFTER_THE_CALLS:
            assert manage.main(words(command)) == status, command
        # There is no claim left.
        assert manage.main(words(RELEASE)) == 1


@pytest.mark.parametrize(
    ('name', 'manager'),
    [
        ('scheduler_service.conf', 'true'),
        ('scheduler_service.conf.sample', 'false'),
    ],
)
def test_a_daemon_answers_with_a_shipped_file_and_takes_no_lock(
    name, manager, bus, postgresql, tmp_path, words
):
    text = (ETC / name).read_text()
    text = with_addresses(text, bus, new_database(postgresql[1]))
    text += (
        f'[oslo_messaging_rabbit]\nuse_queue_manager = {manager}\n'
        f'[oslo_concurrency]\nlock_path = {tmp_path}/locks\n'
    )
    (tmp_path / 'service.conf').write_text(text)
    for command in ('db sync', 'inventory import ETC/inventory.yaml'):
        assert manage.main(words(command)) == 0
    with daemon(tmp_path):
        call(words('select --request ETC/request.yaml'))
        assert not (tmp_path / 'locks').exists()


def test_the_commands_above_are_all_that_there_are():
    tried = [command for command, _ in BEFORE_THE_DAEMON + AFTER_THE_CALLS]
    tried += [*CALLS, RELEASE]
    missing = [
        name
        for name in manage.App().parsers()
        if not any(f'{line} '.startswith(f'{name} ') for line in tried)
    ]
    assert missing == []
