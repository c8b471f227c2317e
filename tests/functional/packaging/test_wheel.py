"""The wheel alone is enough: what an operator does after ``pip install``."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import textwrap
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service.cmd import parser
from tests.support import processes, servers, wheels
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow
INSTALL = (ROOT / 'doc/source/admin/install.rst').read_text()
# Nothing of the checkout. The libraries are those of the tests' environment;
# that no other is needed is the business of test_dependencies.
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

    def ran(
        name: str, *words: str, status: int = 0, cwd: Any = tmp_path
    ) -> str:
        done = subprocess.run(
            [programs / name, *words],
            capture_output=True, text=True, timeout=180, cwd=cwd,
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
    return {name for name in names if not name.endswith('-generator.conf')}


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


def blocks(kind: str) -> list[str]:
    """Return the blocks of one kind of the page on the installation."""
    found = re.findall(
        rf'(?m)^\.\. code-block:: {kind}\n\n((?:(?:    .*)?\n)+)', INSTALL
    )
    return [textwrap.dedent(block) for block in found]


def steps(program: str) -> list[list[str]]:
    """Return the words of each line of the page that runs a program."""
    lines = re.findall(rf'(?m)^    ({program} .*)$', INSTALL)
    return [shlex.split(line) for line in lines]


@pytest.fixture
def servers_of_the_page(rabbitmq, postgresql) -> Callable[[str], str]:
    """Make what the page says on the servers of the tests.

    Give a function that puts their addresses into a text of the page. The
    names differ, since other tests use the servers, too.
    """
    name = f'scheduler{uuid.uuid4().hex[:8]}'
    engine = sa.create_engine(
        f'{postgresql[1]}postgres', isolation_level='AUTOCOMMIT'
    )
    with engine.connect() as conn:
        for statement in blocks('sql')[0].split(';')[:-1]:
            conn.exec_driver_sql(statement.replace('scheduler', name))
    engine.dispose()
    for _, *words in steps('rabbitmqctl'):
        own = [word.replace('scheduler', name) for word in words]
        servers.rabbitmqctl(rabbitmq[0], *own)

    def with_addresses(text: str) -> str:
        text = re.sub(r'scheduler(?=[:/]|$)', name, text, flags=re.MULTILINE)
        for port, server in (('5672/', rabbitmq), ('', postgresql)):
            address = sa.make_url(server[1]).port
            if port:
                text = text.replace(
                    f'localhost:{port}', f'localhost:{address}/'
                )
            else:
                text = text.replace('@localhost/', f'@localhost:{address}/')
        return text

    return with_addresses


def test_the_documented_steps_work(
    run, programs, share, servers_of_the_page, tmp_path
):
    text = (share / 'scheduler-service/scheduler_service.conf').read_text()
    (wanted,) = blocks('ini')
    for line in wanted.splitlines():
        option, is_option, _ = line.partition(' = ')
        if is_option:
            own = servers_of_the_page(line)
            text, count = re.subn(rf'(?m)^{option} = .*$', own, text)
            assert count == 1
    # One of the places where the programs look by themselves.
    config = tmp_path / '.scheduler_service/scheduler_service.conf'
    config.parent.mkdir()
    config.write_text(text)
    samples = share / 'scheduler-service'
    before, after = [], []
    for words in steps('scheduler-manage') + steps('scheduler-status'):
        asks = words[1] in ('ping', 'select', 'claim')
        (after if asks else before).append(words)
    assert len(before) == 5
    assert len(after) == 3
    for words in before:
        run(*words, cwd=samples)
    daemon = processes.launch(
        config,
        program=programs / 'scheduler-service',
        cwd=str(tmp_path),
        PYTHONPATH='',
    )
    try:
        daemon.wait_for('Ready: 6 hosts')
        for words in after:
            assert run(*words, cwd=samples)
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


@pytest.mark.parametrize(
    ('program', 'asked'),
    [
        ('scheduler-manage', 'completion'),
        ('scheduler-status', '--shell_completion'),
    ],
)
def test_completion_is_where_shells_look_for_it(
    share, programs, program, asked
):
    for path, shell in (
        (f'bash-completion/completions/{program}', 'bash'),
        (f'zsh/site-functions/_{program}', 'zsh'),
        (f'fish/vendor_completions.d/{program}.fish', 'fish'),
    ):
        printed = subprocess.run(
            [programs / program, asked, shell],
            capture_output=True, text=True, timeout=60, check=True,
            env=ENVIRONMENT,
        )  # fmt: skip
        assert (share / path).read_text() == printed.stdout


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
