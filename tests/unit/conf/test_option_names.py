"""Names in configuration files that no option has."""

import re
import subprocess
import sys

import pytest

from scheduler_service import conf as options
from scheduler_service import rpc  # noqa: F401 - chooses the bus's backend
from scheduler_service.cmd import adapters
from scheduler_service.conf import option_names
from scheduler_service.rpc import transport
from tests.support.paths import ROOT
from tests.support.waiting import LIMIT_S

SAMPLE = ROOT / 'etc/scheduler_service/scheduler_service.conf.sample'


@pytest.fixture
def unknown(tmp_path):
    """Give a function that returns what is said of a file's names."""
    path = tmp_path / 'a.conf'

    def read(text):
        path.write_text(text)
        conf = adapters.new_config()
        transport.prepare(conf)
        options.parse(conf, [f'--config-file={path}'])
        found = option_names.unknown(conf)
        return [one.removeprefix(f'{path}: ') for one in found]

    return read


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        (
            '[DEFAULT]\nrpc_respons_timeout = 3\n',
            '[DEFAULT] rpc_respons_timeout: there is no such option; is '
            'rpc_response_timeout meant?',
        ),
        (
            '[schedular]\ntopic = x\n',
            '[schedular] topic: there is no group schedular; is scheduler '
            'meant?',
        ),
        (
            '[scheduler]\nconnection = x\n',
            '[scheduler] connection: there is no such option; [database] has '
            'one',
        ),
        (
            '[scheduler]\nxyz_xyz = x\n',
            '[scheduler] xyz_xyz: there is no such option',
        ),
        ('[mine]\nx = x\n', '[mine] x: there is no group mine'),
    ],
)
def test_a_name_that_no_option_has_is_found(unknown, text, expected):
    assert unknown(text) == [expected]


@pytest.mark.parametrize(
    'text',
    [
        '[oslo_messaging_rabbit]\nrabbit_quorum_queue = true\n',
        '[DEFAULT]\nscheduler_max_attempts = 5\ncontrol_exchange = x\n',
        '[service:central]\nscheduler_filters = random\nworkers = 2\n',
        '[keystone_authtoken]\nsome = thing\n',
        '[placement]\nauth_url = http://x\nregion_name = x\n',
    ],
)
def test_names_of_libraries_and_older_names_are_known(unknown, text):
    assert unknown(text) == []


def test_every_name_of_the_sample_is_known(unknown):
    text = re.sub(r'(?m)^#(\w+ = )', r'\1', SAMPLE.read_text())
    assert 'batch_size' in text
    assert unknown(text) == []


def test_a_file_that_is_no_text_is_named(tmp_path):
    good, bad = tmp_path / 'good.conf', tmp_path / 'bad.conf'
    good.write_text('[DEFAULT]\n')
    bad.write_bytes(b'\xa3\xff')
    with pytest.raises(ValueError, match='not a text in UTF-8') as caught:
        options.parse(
            adapters.new_config(),
            [f'--config-file={good}', '--config-file', str(bad)],
        )
    assert str(caught.value).startswith(f'{bad}: ')


def test_no_locks_of_eventlet_get_into_the_standard_library():
    code = (
        'import sys\n'
        'from scheduler_service import conf as options\n'
        'from scheduler_service.cmd import adapters\n'
        'from scheduler_service.conf import option_names\n'
        'from scheduler_service.rpc import transport\n'
        'conf = adapters.new_config()\n'
        'transport.prepare(conf)\n'
        f'options.parse(conf, ["--config-file={SAMPLE}"])\n'
        'option_names.unknown(conf)\n'
        'assert "eventlet.wsgi" not in sys.modules\n'
    )
    subprocess.run([sys.executable, '-c', code], check=True, timeout=LIMIT_S)
