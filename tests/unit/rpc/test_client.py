"""What the client needs of the options that it is handed."""

import pytest
from oslo_config import cfg

from scheduler_service.rpc.client import SchedulerClient

# As a compute service registers it.
THEIRS = cfg.StrOpt('scheduler', help='RPC version cap of the scheduler')


@pytest.mark.parametrize('registered', [(), (THEIRS,)])
def test_a_client_takes_options_that_know_nothing_of_it(tmp_path, registered):
    path = tmp_path / 'api.conf'
    path.write_text(
        '[DEFAULT]\ntransport_url = inproc://\n'
        '[upgrade_levels]\nscheduler = 1.0\n'
    )
    conf = cfg.ConfigOpts()
    conf.register_opts(registered, group='upgrade_levels')
    conf(['--config-file', str(path)])
    client = SchedulerClient(conf)
    assert client._client.version_cap == '1.0'
    client.transport.cleanup()
