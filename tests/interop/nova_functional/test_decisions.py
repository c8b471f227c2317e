"""A part of nova's own functional tests has the same end with a daemon.

``python -m tools.nova_functional`` runs all of them.
"""

import pytest

from tests.support import nova_functional, servers
from tests.support.waiting import SLOWNESS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.functional,
    pytest.mark.broker,
    # On a machine with other work.
    pytest.mark.timeout(900 * SLOWNESS),
]


def test_a_daemon_decides_as_the_scheduler_does(rabbitmq, tmp_path):
    names = nova_functional.ids('part.txt')
    url = servers.new_vhost(*rabbitmq)
    # A second worker would import all again, for a fifth more of the work.
    runner = nova_functional.Runner(url, tmp_path, workers=1)
    results = runner.run('fresh', names)
    assert {one['id'] for one in results} == {*names}
    # Each asked the daemon, which took all options.
    assert [
        one for one in results if not one.get('calls') or one['unknown']
    ] == []
    known = nova_functional.causes()
    assert [
        one for one in runner.differing(results) if one['id'] not in known
    ] == []
