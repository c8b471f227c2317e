"""The driver on the releases of oslo.messaging that it says it works with.

Whatever release is installed, all tests run with it. Those of the driver run
here once more, each in a pytest of its own, with the others of the two ends
of the range.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import oslo_messaging
import pytest

from scheduler_service.rpc import driver_range
from tests.support import interop
from tests.support.databases import ready_database
from tests.support.documents import SMALL
from tests.support.paths import ROOT
from tests.support.processes import on_topic
from tests.support.services import hosts_of

pytestmark = [pytest.mark.slow, pytest.mark.broker]
ENDS = {driver_range.LOWEST, driver_range.HIGHEST}
OTHERS = sorted(ENDS - {driver_range.installed()})
TESTS = ('test_rabbit.py', 'test_acknowledgement.py')
CONTEXT = {'user_id': 'u', 'project_id': 'p', 'roles': ['admin']}


@pytest.mark.timeout(600)
@pytest.mark.parametrize('version', OTHERS)
def test_the_driver_works_with_a_release(version, servers_address):
    folder = interop.library('oslo.messaging', version)
    tests = [str(pathlib.Path(__file__).parent / name) for name in TESTS]
    done = subprocess.run(
        [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider',
         '-p', 'no:xdist', *tests],
        cwd=ROOT, capture_output=True, text=True, timeout=500,
        env={
            **os.environ,
            'PYTHONPATH': f'{folder}{os.pathsep}{ROOT}',
            'SCHEDULER_TEST_SERVERS': servers_address,
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
    assert ' passed' in done.stdout
    assert 'skipped' not in done.stdout.splitlines()[-1]


@pytest.fixture
def changed_library(tmp_path) -> pathlib.Path:
    """A folder with oslo.messaging, of which a private class was renamed."""
    source = pathlib.Path(oslo_messaging.__file__).parent
    shutil.copytree(source, tmp_path / 'lib' / 'oslo_messaging')
    path = tmp_path / 'lib/oslo_messaging/_drivers/amqpdriver.py'
    text = path.read_text()
    assert text.count('class AMQPListener(') == 1
    path.write_text(text.replace('AMQPListener', 'ChangedListener'))
    return tmp_path / 'lib'


def test_a_daemon_works_on_the_stock_driver_and_says_what_is_lost(
    changed_library, launch, connect, rabbitmq, tmp_path
):
    topic = 'stock-driver'
    daemon = launch(
        ready_database(f'sqlite:///{tmp_path}/'),
        rabbitmq[1],
        on_topic(topic),
        PYTHONPATH=f'{changed_library}{os.pathsep}{ROOT}',
    )
    daemon.wait_for('Ready')
    (line,) = [line for line in daemon.lines if 'stock driver is used' in line]
    assert 'WARNING' in line
    assert 'lacks what the driver for RabbitMQ needs (amqpdriver.AMQP' in line
    assert driver_range.LOST in line
    client = connect(rabbitmq[1], topic)
    reply = client.select_destinations(CONTEXT, {'flavor': SMALL})
    assert hosts_of(reply)
    assert daemon.end() == 0
