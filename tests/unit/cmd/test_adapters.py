"""What an adapter costs a daemon that does not enable it."""

import subprocess
import sys

from scheduler_service.cmd import adapters
from tests.support.waiting import LIMIT_S

# Runs in a process of its own: for each file, prints what a daemon imports of
# adapters that those before it did not.
_PROGRAM = """
import sys
from scheduler_service import rpc
from scheduler_service import conf as options
from scheduler_service.cmd import adapters
from scheduler_service.cmd.daemon import Daemon
from scheduler_service.rpc import transport

packages = ('compute', 'extenders', 'kube', 'pages')
before = set()
for path in sys.argv[1:]:
    conf = adapters.new_config()
    transport.prepare(conf)
    options.parse(conf, [f'--config-file={path}'])
    daemon = Daemon(conf)
    daemon.http.end()
    names = [name.partition('.') for name in sys.modules]
    found = {
        name
        for package, _, name in names
        if package == 'scheduler_service' and name.split('.')[0] in packages
    }
    print(*sorted(found - before))
    before = found
"""
_ALWAYS = {
    'compute',
    'compute.options',
    'extenders',
    'extenders.options',
    'kube',
    'kube.options',
}


def test_a_daemon_imports_options_and_the_adapters_that_it_enables(tmp_path):
    enabled = (
        '',
        '[compute]\nexternal_scheduler = true',
        '[http]\nbind_port = 0\npages = false',
        '[http]\nbind_port = 0',
    )
    paths = [tmp_path / f'{number}.conf' for number in range(len(enabled))]
    for path, lines in zip(paths, enabled, strict=True):
        path.write_text(
            '[DEFAULT]\ntransport_url = inproc://\n[database]\n'
            f'connection = sqlite:///{tmp_path}/store.db\n{lines}\n'
        )
    done = subprocess.run(
        [sys.executable, '-c', _PROGRAM, *paths],
        check=True, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    plain, compute, kube, pages = (
        set(line.split()) for line in done.stdout.splitlines()
    )
    assert plain == _ALWAYS
    for found, package_name in (
        (compute, 'compute'), (kube, 'kube'), (pages, 'pages'),
    ):  # fmt: skip
        assert f'{package_name}.adapter' in found
        assert {name.split('.')[0] for name in found} == {package_name}


def test_stages_that_record_follow_from_the_options():
    conf = adapters.new_config()
    conf([], default_config_files=[])
    assert adapters.recorded_stages(conf) == set()
    conf.set_override('use_placement', True, 'compute')
    conf.set_override('policy_file', 'policy.json', 'extender')
    assert adapters.recorded_stages(conf) == {'complete', 'bind'}
