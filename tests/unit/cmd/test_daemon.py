"""A daemon that is built to check its configuration."""

import threading

import pytest

from scheduler_service import errors
from scheduler_service.cmd import adapters
from scheduler_service.cmd.daemon import checked

PLACEMENT = """
[compute]
enabled = true
api_database = sqlite:///{folder}/api.db
use_placement = true
[placement]
auth_type = none
endpoint_override = http://127.0.0.1:1
[http]
bind_port = 0
"""


@pytest.fixture
def read(tmp_path):
    """Give a function that reads a file with these lines."""

    def read(text=''):
        path = tmp_path / 'a.conf'
        path.write_text(
            '[DEFAULT]\ntransport_url = inproc://\n[database]\n'
            f'connection = sqlite:///{tmp_path}/a.db\n'
            + text.replace('{folder}', str(tmp_path))
        )
        return adapters.load([path])

    return read


def test_a_check_leaves_no_thread(read):
    """A daemon checks its files at each reload, good or not."""
    before = threading.enumerate()
    checked(read(PLACEMENT)).dispose()
    assert threading.enumerate() == before
    with pytest.raises(errors.ConfigurationError, match='token_file'):
        checked(read(f'{PLACEMENT}token_file = {__file__}.none\n'))
    assert threading.enumerate() == before


def test_the_options_of_the_bus_are_checked(read):
    text = '[oslo_messaging_rabbit]\nheartbeat_rate =\n'
    with pytest.raises(errors.ConfigurationError, match='heartbeat_rate'):
        checked(read(text))


def test_a_file_database_has_no_wait_for_a_connection(read):
    daemon = checked(read('pool_timeout = 30\n'))
    with daemon.store.reading() as conn:
        assert conn.exec_driver_sql('SELECT 1').scalar() == 1
    daemon.dispose()
    for text in ('-1', '9999999999'):
        with pytest.raises(errors.ConfigurationError, match='pool_timeout'):
            checked(read(f'pool_timeout = {text}\n'))
