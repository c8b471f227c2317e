"""The wheel alone is enough: what an operator does after ``pip install``."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Callable

import pytest

from scheduler_service.cmd import parser
from tests.support import processes, servers, wheels
from tests.support.databases import new_database
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow
# Nothing of the checkout, and nothing of the environment of the tests.
ENVIRONMENT = {'PATH': '/usr/bin:/bin', 'LC_ALL': 'C.UTF-8'}


@pytest.fixture(scope='module')
def programs(tmp_path_factory) -> pathlib.Path:
    """The folder of the programs of an environment with the wheel."""
    folder = tmp_path_factory.mktemp('wheel')
    source = wheels.copy_of_the_tree(folder / 'source')
    wheel = wheels.build(source, folder / 'built')
    return wheels.install(wheel, source, folder / 'venv')


@pytest.fixture
def share(programs) -> pathlib.Path:
    return programs.parent / 'share'


@pytest.fixture
def run(programs, tmp_path) -> Callable[..., str]:
    """Give a function that runs a program in an empty folder."""

    def ran(name: str, *words: str, status: int = 0) -> str:
        done = subprocess.run(
            [programs / name, *words],
            capture_output=True, text=True, timeout=180, cwd=tmp_path,
            env={**ENVIRONMENT, 'HOME': str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        assert 'Traceback' not in done.stderr
        return done.stdout

    return ran


@pytest.fixture
def oslo_policy(run, tmp_path) -> Callable[..., str]:
    """Give a function that runs a tool of oslo.policy on a policy file."""

    def ran(tool: str, rules: str, status: int = 0) -> str:
        (tmp_path / 'policy.yaml').write_text(rules)
        config = tmp_path / 'a.conf'
        # A relative path, as the sample has it.
        config.write_text('[oslo_policy]\npolicy_file = policy.yaml\n')
        call = (
            'import sys; from oslo_policy import generator;'
            f'sys.exit(generator.{tool}())'
        )
        return run(
            'python', '-c', call, '--config-file', str(config),
            '--namespace', 'scheduler_service', status=status,
        )  # fmt: skip

    return ran


def shipped_in_etc() -> set[str]:
    """Return the names of the files in etc, but for the generator's own."""
    names = {path.name for path in (ROOT / 'etc').rglob('*') if path.is_file()}
    return names - {'scheduler-service-config-generator.conf'}


def test_everything_in_etc_is_installed(share):
    folder = share / 'scheduler-service'
    installed = {path.name for path in folder.rglob('*') if path.is_file()}
    assert shipped_in_etc() <= installed


def test_the_quickstart_runs_and_so_do_the_commands_that_it_prints(
    run, tmp_path
):
    told = run('scheduler-quickstart', '--folder', str(tmp_path / 'tour'))
    assert 'RamFilter alone keeps out' in told
    *_, listed, explained = told.replace('\n', ' ').split('scheduler-manage ')
    for words in (listed, explained):
        # The rest of the line is the path of the program that follows.
        own = re.sub(r'\s+\S+/bin/$', '', words).split()
        assert run('scheduler-manage', *own)


def test_the_documented_steps_work(run, programs, share, rabbitmq,
                                   postgresql, tmp_path):  # fmt: skip
    config = tmp_path / 'scheduler_service.conf'
    text = (share / 'scheduler-service/scheduler_service.conf').read_text()
    bus = servers.new_vhost(*rabbitmq)
    database = new_database(postgresql[1])
    for option, value in (('transport_url', bus), ('connection', database)):
        text, count = re.subn(rf'(?m)^{option} = .*$',
                              f'{option} = {value}', text)  # fmt: skip
        assert count == 1
    config.write_text(text)
    manage = ['scheduler-manage', '--config-file', str(config)]
    run(*manage, 'db', 'sync')
    inventory = share / 'scheduler-service/inventory.yaml'
    run(*manage, 'inventory', 'import', str(inventory))
    checked = ['--config-file', str(config), 'upgrade', 'check']
    run('scheduler-status', *checked)
    daemon = processes.launch(
        config,
        program=programs / 'scheduler-service',
        cwd=str(tmp_path),
        PYTHONPATH='',
    )
    try:
        daemon.wait_for('Ready: 6 hosts')
        request = share / 'scheduler-service/request.yaml'
        told = run(*manage, 'select', '--request', str(request), '-f', 'json')
        assert json.loads(told)['placements']
        assert daemon.end() == 0
    finally:
        daemon.remove()


def test_every_program_has_a_man_page_that_can_be_read(share, programs):
    mentioned = {}
    for path in (share / 'man/man1').iterdir():
        done = subprocess.run(
            ['man', '--warnings', '-l', path], capture_output=True,
            text=True, timeout=60,
            env={**ENVIRONMENT, 'MANWIDTH': '200', 'MANPAGER': 'cat'},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr == ''
        mentioned[path.stem] = re.sub('.\b', '', done.stdout)
    assert set(mentioned) == {
        path.name for path in programs.glob('scheduler-*')
    }
    page = ' '.join(mentioned['scheduler-manage'].split())
    for noun in parser.build()._subparsers._group_actions[0].choices:
        assert f' {noun} ' in page


def test_the_tools_of_oslo_policy_know_the_rules(oslo_policy):
    default = 'role:admin or is_admin:True'
    rules = f'"ping": "role:x"\n"admin_required": "{default}"\n'
    oslo_policy('validate_policy', rules)
    redundant = oslo_policy('list_redundant', rules)
    assert 'admin_required' in redundant
    assert 'ping' not in redundant
    unknown = oslo_policy('validate_policy', '"pong": "role:x"', status=1)
    assert 'pong' in unknown


@pytest.mark.skipif(
    not shutil.which('systemd-sysusers') or os.getuid() != 0,
    reason='makes users and folders of systemd, as root below a folder',
)
def test_systemd_makes_user_and_folders_of_the_files(share, tmp_path):
    etc = tmp_path / 'etc'
    etc.mkdir()
    for program, kind in (
        (['systemd-sysusers'], 'sysusers.d'),
        (['systemd-tmpfiles', '--create'], 'tmpfiles.d'),
    ):
        file = share / 'scheduler-service' / kind / 'scheduler-service.conf'
        subprocess.run(
            [*program, f'--root={tmp_path}', file], check=True, timeout=60
        )
    users = (etc / 'passwd').read_text()
    assert re.search(
        r'(?m)^scheduler-service:.*:/var/lib/scheduler-service:', users
    )
    modes = {
        name: (tmp_path / name).stat().st_mode & 0o777
        for name in ('etc/scheduler_service', 'var/lib/scheduler-service')
    }
    assert set(modes.values()) == {0o750}
