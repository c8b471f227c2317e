"""The Python example of the README, run as it stands there."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

from tests import servers

pytestmark = [pytest.mark.functional, pytest.mark.broker]

README = pathlib.Path(__file__).parents[2] / 'README.rst'
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
    server, bus = rabbitmq
    # The example uses the default topic, which is taken here alone.
    servers.rabbitmqctl(server, 'add_vhost', 'readme')
    servers.rabbitmqctl(
        server, 'set_permissions', '-p', 'readme', 'guest', '.*', '.*', '.*'
    )
    make_service(url=f'{bus}readme')
    config = tmp_path / 'api.conf'
    config.write_text(f'[DEFAULT]\ntransport_url = {bus}readme\n')
    text = snippet()
    assert text.count(API_CONF) == 1
    done = subprocess.run(
        [sys.executable, '-c', text.replace(API_CONF, str(config))],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    hosts = [line.split()[1] for line in done.stdout.splitlines()]
    assert len(hosts) == 2
    assert {*hosts} <= {'compute-1', 'compute-2'}
