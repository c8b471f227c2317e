"""Unmodified clients and servers of the oldest and the newest release.

They are other processes, with the library of the release before others.
"""

import json
import os
import re
import subprocess
import sys
import uuid
from typing import Any

import pytest

from tests.support import interop, stock_peer
from tests.support.documents import CONTEXT, SMALL
from tests.support.paths import ROOT
from tests.support.services import hosts_of
from tests.support.waiting import LIMIT_S

pytestmark = [pytest.mark.slow, pytest.mark.broker]
OLDEST = re.search(
    r'"oslo\.messaging>=([\d.]+)"', (ROOT / 'pyproject.toml').read_text()
).group(1)
RELEASES = (OLDEST, '18.3.1')


@pytest.fixture(params=RELEASES)
def peer(request) -> Any:
    """Give a function that starts a peer's process with a release."""
    folder = interop.library('oslo.messaging', request.param)
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        running.append(
            subprocess.Popen(
                [sys.executable, '-W', 'ignore', stock_peer.__file__,
                 request.param, *arguments],
                stdout=subprocess.PIPE, text=True, cwd=ROOT,
                env={**os.environ,
                     'PYTHONPATH': f'{folder}{os.pathsep}{ROOT}'},
            )
        )  # fmt: skip
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_client_of_the_release_calls_the_daemon(peer, make_service):
    service = make_service('rabbit')
    caller = peer('call', service.url, service.conf.scheduler.topic)
    printed, _ = caller.communicate(timeout=LIMIT_S)
    found = json.loads(printed.splitlines()[-1])
    assert found['ping']['database'] == 'up'
    assert hosts_of(found['selected']) == ['compute-4']
    assert hosts_of(found['packed']) == ['compute-4']
    assert (found['error'], found['facts']['at']) == (
        'InvalidRequest', 'nonsense',
    )  # fmt: skip
    assert found['remote'] == 'RemoteError'
    assert found['with heartbeats']['database'] == 'up'


def test_a_server_of_the_release_gets_casts_of_results(peer, make_service):
    service = make_service('rabbit')
    topic = f'conductor-{uuid.uuid4().hex[:8]}'
    server = peer('serve', service.url, topic)
    assert server.stdout.readline() == 'ready\n'
    sent = service.client.select_destinations_cast(
        CONTEXT, {'flavor': SMALL}, reply_to={'topic': topic}
    )
    reply = json.loads(server.stdout.readline())
    assert reply['request_id'] == sent['request_id']
    assert hosts_of(reply['result']) == ['compute-4']
