"""What an adapter costs a daemon that does not enable it."""

import subprocess
import sys

import pytest

# Runs in a process of its own: prints what was imported of each adapter.
_PROGRAM = """
import sys
from scheduler_service import rpc
from scheduler_service import conf as options
from scheduler_service.cmd import adapters
from scheduler_service.cmd.daemon import Daemon
from scheduler_service.rpc import transport

conf = adapters.new_config()
transport.prepare(conf)
options.parse(conf, [f'--config-file={sys.argv[1]}'])
daemon = Daemon(conf)
daemon.http.end()
rooms = ('compute', 'extenders', 'kube')
for name in sorted(sys.modules):
    parts = name.split('.')
    if parts[0] == 'scheduler_service' and parts[1:2] in [[r] for r in rooms]:
        print(name.removeprefix('scheduler_service.'))
"""
_ALWAYS = {
    'compute',
    'compute.options',
    'extenders',
    'extenders.options',
    'kube',
    'kube.options',
}


@pytest.fixture
def imported(tmp_path):
    """Give a function that returns what a daemon imports of adapters."""

    def run(*lines):
        path = tmp_path / 'scheduler.conf'
        url = f'sqlite:///{tmp_path}/store.db'
        path.write_text(
            '\n'.join(
                ['[DEFAULT]', 'transport_url = inproc://', '[database]',
                 f'connection = {url}', *lines]
            )
        )  # fmt: skip
        done = subprocess.run(
            [sys.executable, '-c', _PROGRAM, str(path)],
            check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return set(done.stdout.split())

    return run


def test_a_plain_daemon_imports_the_options_of_adapters_alone(imported):
    assert imported() == _ALWAYS


@pytest.mark.parametrize(
    ('lines', 'room'),
    [
        (('[compute]', 'external_scheduler = true'), 'compute'),
        (('[http]', 'bind_port = 0'), 'kube'),
    ],
)
def test_a_daemon_imports_the_adapter_that_it_enables(imported, lines, room):
    found = imported(*lines)

    assert f'{room}.adapter' in found
    assert not {name for name in found - _ALWAYS if name.split('.')[0] != room}
