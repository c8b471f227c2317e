"""The Python example of the README, run as it stands there."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

from tests.support import servers
from tests.support.waiting import LIMIT_S

pytestmark = [pytest.mark.functional, pytest.mark.broker]

README = pathlib.Path(__file__).parents[3] / 'README.rst'
API_CONF = '/etc/api.conf'


def snippet() -> str:
    """Return the example, which starts with an import."""
    found = re.search(
        r'(?m)^    from oslo_config import cfg\n(?:(?:    .*)?\n)+',
        README.read_text(),
    )
    assert found is not None
    return textwrap.dedent(found[0])


def test_the_example_prints_a_host_for_each_instance(
    make_service, rabbitmq, tmp_path
):
    # A virtual host of its own, since the example uses the default topic.
    bus = servers.new_vhost(*rabbitmq)
    make_service(url=bus)
    config = tmp_path / 'api.conf'
    config.write_text(f'[DEFAULT]\ntransport_url = {bus}\n')
    text = snippet()
    assert text.count(API_CONF) == 1
    done = subprocess.run(
        [sys.executable, '-c', text.replace(API_CONF, str(config))],
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    hosts = [line.split()[1] for line in done.stdout.splitlines()]
    assert len(hosts) == 2
    assert {*hosts} <= {'compute-1', 'compute-2'}


def test_the_client_takes_the_topic_from_its_file(
    make_service, rabbitmq, tmp_path
):
    bus = servers.new_vhost(*rabbitmq)
    make_service(url=bus, scheduler__topic='other', scheduler__exchange='own')
    config = tmp_path / 'api.conf'
    config.write_text(
        f'[DEFAULT]\ntransport_url = {bus}\n'
        '[scheduler]\ntopic = other\nexchange = own\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', snippet().replace(API_CONF, str(config))],
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
