"""The wheel alone is enough: what an operator does after ``pip install``."""

import pathlib
import re
import subprocess
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

from scheduler_service.cmd import parser, status
from scheduler_service.cmd.commands import completion
from scheduler_service.cmd.parser import Lister
from tests.support import page_commands, requirements, wheels
from tests.support.paths import ROOT
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.slow
# Nothing of the checkout. The libraries are those of the tests' environment;
# that no other is needed is the business of test_dependencies.
ENVIRONMENT = {'PATH': '/usr/bin:/bin', 'LC_ALL': 'C.UTF-8'}


@pytest.fixture(scope='module')
def programs(wheel, tmp_path_factory) -> pathlib.Path:
    """The folder of the programs of an environment with the wheel."""
    return wheels.install(*wheel, tmp_path_factory.mktemp('wheel') / 'venv')


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
            capture_output=True, text=True, timeout=LIMIT_S, cwd=cwd,
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


def test_every_file_of_the_package_is_installed(wheel):
    built, source = wheel
    with zipfile.ZipFile(built) as archive:
        installed = set(archive.namelist())
    files = {
        str(path.relative_to(source))
        for path in (source / 'scheduler_service').rglob('*')
        # Only who writes a migration needs the template; Python compiles.
        if path.is_file() and path.suffix not in ('.mako', '.pyc')
    }
    assert files - installed == set()


def test_the_quickstart_runs_and_so_do_the_commands_that_it_prints(
    run, tmp_path
):
    told = run('scheduler-quickstart', '--folder', str(tmp_path / 'tour'))
    for text in ('gold-global', 'The zone has had this pool before', 'fpga-1',
                 'by cast', 'RamFilter alone keeps out'):  # fmt: skip
        assert text in told
    *_, listed, explained = told.replace('\n', ' ').split('scheduler-manage ')
    for words in (listed, explained):
        # The rest of the line is the path of the program that follows.
        own = re.sub(r'\s+\S+/bin/$', '', words).split()
        assert run('scheduler-manage', *own)


def test_the_readme_shows_what_the_quickstart_has_refused(run, tmp_path):
    run('scheduler-quickstart', '--folder', str(tmp_path / 'tour'))
    config = ('--config-file', str(tmp_path / 'tour/scheduler_service.conf'))
    words = ('--outcome', 'NoValidHost', '-f', 'value', '-c', 'request_id')
    ids = run('scheduler-manage', *config, 'decision', 'list', *words)
    printed = run('scheduler-manage', *config, 'decision', 'show', ids.strip())
    (_, *shown), *_ = (
        block.splitlines()
        for block in page_commands.of_language(ROOT / 'README.rst', 'text')
    )
    assert lasting('\n'.join(shown)) == lasting(printed.strip())


def lasting(decision: str) -> str:
    """Return a decision without what differs from run to run."""
    return re.sub(
        r'(?m)^\S+(?=  select)|(?<=^decided by ).*|(?<=^after \(ms\) ).*|'
        r'(?<=^with configuration ).*| +$',
        '', decision,
    )  # fmt: skip


def test_every_program_has_a_man_page_that_can_be_read(share, programs):
    requirements.need_program('man')
    mentioned = {}
    for path in (share / 'man/man1').iterdir():
        done = subprocess.run(
            ['man', '--warnings', '-l', path], capture_output=True,
            text=True, timeout=LIMIT_S,
            env={**ENVIRONMENT, 'MANWIDTH': '200', 'MANPAGER': 'cat'},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr == ''
        mentioned[path.stem] = re.sub('.\b', '', done.stdout)
    assert set(mentioned) == {
        path.name for path in programs.glob('scheduler-*')
    }
    page = ' '.join(mentioned['scheduler-manage'].split())
    for noun in {words.split()[0] for words in parser.COMMANDS}:
        assert f' {noun} ' in page
    # What all lists have stands there once, and their own limits beside it.
    assert page.count('--sort-column') == 1
    assert page.count('[list options]') == sum(
        issubclass(command, Lister) for command in parser.COMMANDS.values()
    )
    assert '(default: 20)' in page


def test_completion_is_where_shells_look_for_it(share):
    for built in (completion.tree(), status.parser()):
        for path, shell in (
            (f'bash-completion/completions/{built.prog}', 'bash'),
            (f'zsh/site-functions/_{built.prog}', 'zsh'),
            (f'fish/vendor_completions.d/{built.prog}.fish', 'fish'),
        ):
            printed = completion.script(built, shell)
            assert (share / path).read_text() == printed


def test_the_tools_of_oslo_policy_know_the_rules(oslo_policy):
    default = 'role:admin or is_admin:True'
    rules = f'"ping": "role:x"\n"admin_required": "{default}"\n'
    oslo_policy('validate_policy', rules)
    redundant = oslo_policy('list_redundant', rules)
    assert 'admin_required' in redundant
    assert 'ping' not in redundant
    unknown = oslo_policy('validate_policy', '"pong": "role:x"', status=1)
    assert 'pong' in unknown
