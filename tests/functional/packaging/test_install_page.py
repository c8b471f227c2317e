"""Every line of the page on installing, in its order, below a folder.

The folder stands in for the root of a machine: paths in ``/etc`` and ``/opt``
are below it, and the programs of systemd are given it as their root. Servers
are those of the tests, so that names and addresses differ from the page's.
``page_commands.NOT_RUN`` has the lines that need more than that.
"""

from __future__ import annotations

import configparser
import os
import pathlib
import pwd
import re
import shlex
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterable

import pytest
import sqlalchemy as sa

from tests.support import page_commands, processes, requirements, servers
from tests.support import wheels as packages
from tests.support.waiting import LIMIT_S

pytestmark = [
    pytest.mark.slow,
    pytest.mark.broker,
    pytest.mark.db,
    pytest.mark.skipif(
        os.getuid() != 0, reason='the page gives files to other users'
    ),
]
PAGE = page_commands.page('install')
USER = 'scheduler-service'
CONFIG = 'etc/scheduler_service/scheduler_service.conf'
UNIT = 'etc/systemd/system/scheduler-service.service'
SYSTEMD = ('systemd-sysusers', 'systemd-tmpfiles', 'systemctl')


class Machine:
    """A folder that stands in for the root of a machine.

    :ivar ran: the lines that ran
    """

    def __init__(self, root: pathlib.Path, wheel: pathlib.Path) -> None:
        self.root = root
        self.ran: list[str] = []
        # Of these a machine with systemd has no more than this one for sure.
        (root / 'etc/systemd/system').mkdir(parents=True)
        own = root / 'own'
        own.mkdir()
        # Where the page has it built.
        (root / 'dist').mkdir()
        (root / 'dist' / wheel.name).symlink_to(wheel)
        # The Python that runs the tests, with its pip, which needs seconds to
        # be installed.
        place = root / 'opt/scheduler-service/bin'
        place.mkdir(parents=True)
        for path, words in (
            (own / 'python3', '"$@" --without-pip'),
            (place / 'pip', f'-m pip --python {place}/python "$@"'),
        ):
            path.write_text(f'#!/bin/sh\nexec {sys.executable} {words}\n')
            path.chmod(0o755)
        self.env = {
            'PATH': f'{own}:/usr/bin:/bin',
            'HOME': str(root),
            'LC_ALL': 'C.UTF-8',
            # The configuration is looked for in its folder etc, as in /etc.
            'SNAP_COMMON': str(root),
            # The libraries are here already.
            'PIP_NO_INDEX': '1',
            'PIP_NO_DEPS': '1',
            'PIP_DISABLE_PIP_VERSION_CHECK': '1',
        }
        # Lines that changed the shell in which the next ones run.
        self._shell: list[str] = []

    def here(self, line: str) -> str:
        """Return a line for this folder in place of the root."""
        line = re.sub(r'(?<![\w/.])/(etc|opt)/', rf'{self.root}/\1/', line)
        program, _, rest = line.partition(' ')
        if program in SYSTEMD:
            rest = rest.replace('--now ', '')
            return f'{program} --root={self.root} {rest}'
        if program == 'chown':
            # The group is in the folder's own file.
            return line.replace(f':{USER}', f':{self.user().pw_gid}')
        return line

    def run(self, lines: Iterable[str]) -> list[str]:
        """Run lines as one shell would; return what each prints."""
        printed = []
        for line in lines:
            own = self.here(line)
            done = subprocess.run(
                ['bash', '-euc', '\n'.join([*self._shell, own])],
                cwd=self.root, env=self.env, capture_output=True, text=True,
                timeout=LIMIT_S,
            )  # fmt: skip
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            assert 'Traceback' not in done.stderr
            if line.startswith(('cd ', 'export ')):
                self._shell.append(own)
            printed.append(done.stdout)
            self.ran.append(line)
        return printed

    def user(self) -> pwd.struct_passwd:
        """Return the entry of the daemon's user."""
        for line in (self.root / 'etc/passwd').read_text().splitlines():
            name, password, uid, gid, *rest = line.split(':')
            if name == USER:
                return pwd.struct_passwd(
                    (name, password, int(uid), int(gid), *rest)
                )
        raise AssertionError('there is no such user')


@pytest.fixture
def machine(wheel, tmp_path) -> Machine:
    for name in SYSTEMD:
        requirements.need_program(name)
    return Machine(tmp_path, wheel[0])


@pytest.fixture
def name() -> str:
    """What is called ``scheduler`` on the page: servers are shared."""
    return f'scheduler{uuid.uuid4().hex[:8]}'


def test_every_line_of_the_page_works(
    machine, wheel, name, rabbitmq, postgresql
):
    package, users, broker, config, tables, start, asking, unit = (
        page_commands.shell_blocks(PAGE)
    )
    machine.run(package)
    packages.add_libraries(machine.root / 'opt/scheduler-service', wheel[1])
    machine.run(users)
    check_folders(machine)
    make_database(postgresql[1], name)
    for line in broker:
        _, *words = shlex.split(line.replace('scheduler', name))
        servers.rabbitmqctl(rabbitmq[0], *words)
        machine.ran.append(line)
    machine.run(config)
    check_owner(machine, machine.root / CONFIG)
    set_addresses(machine.root / CONFIG, name, rabbitmq[1], postgresql[1])
    assert all(machine.run(tables))
    (line,) = start
    program, _, path = shlex.split(machine.here(line))
    program = str(machine.root / 'opt/scheduler-service/bin' / program)
    daemon = processes.launch(
        pathlib.Path(path), pathlib.Path(program), cwd=str(machine.root),
        PYTHONPATH='',
    )  # fmt: skip
    try:
        daemon.wait_for('Ready: 6 hosts')
        machine.ran.append(line)
        assert all(machine.run(asking))
        assert daemon.end() == 0
    finally:
        daemon.remove()
    machine.run(line for line in unit if line not in page_commands.NOT_RUN)
    check_unit(machine)
    # The unit starts the same.
    drop_in = configparser.ConfigParser(strict=False, interpolation=None)
    drop_in.read(machine.root / f'{UNIT}.d/program.conf')
    words = drop_in['Service']['ExecStart'].split()
    assert words == [program, '--config-file', path]
    missing = {*page_commands.lines(PAGE)} - {*machine.ran}
    assert missing <= {*page_commands.NOT_RUN}


def check_folders(machine: Machine) -> None:
    """Check the user and the folders that systemd made of our files."""
    user = machine.user()
    assert user.pw_dir == '/var/lib/scheduler-service'
    owners = {}
    for folder in ('etc/scheduler_service', 'var/lib/scheduler-service',
                   'var/log/scheduler-service',
                   'var/cache/scheduler-service'):  # fmt: skip
        found = (machine.root / folder).stat()
        assert stat.S_IMODE(found.st_mode) == 0o750
        assert found.st_gid == user.pw_gid
        owners[folder.split('/')[0]] = found.st_uid
    assert owners == {'etc': 0, 'var': user.pw_uid}


def check_owner(machine: Machine, path: pathlib.Path) -> None:
    """Check that the daemon may read a file, and only root change it."""
    found = path.stat()
    assert (found.st_uid, found.st_gid) == (0, machine.user().pw_gid)
    assert stat.S_IMODE(found.st_mode) == 0o640


def make_database(url: str, name: str) -> None:
    """Run the statements of the page for PostgreSQL."""
    engine = sa.create_engine(f'{url}postgres', isolation_level='AUTOCOMMIT')
    with engine.connect() as conn:
        statements = page_commands.of_language(PAGE, 'sql')[0]
        for statement in statements.replace('scheduler', name).split(';')[:-1]:
            conn.exec_driver_sql(statement)
    engine.dispose()


def set_addresses(
    path: pathlib.Path, name: str, bus: str, database: str
) -> None:
    """Set the options that the page sets, with the tests' addresses."""
    (wanted,) = page_commands.of_language(PAGE, 'ini')
    text = path.read_text()
    for line in wanted.splitlines():
        option, is_option, value = line.partition(' = ')
        if not is_option:
            continue
        value = re.sub(r'scheduler(?=[:/]|$)', name, value)
        for on_page, url in (
            ('localhost:5672/', bus),
            ('localhost/', database),
        ):
            port = sa.make_url(url).port
            value = value.replace(on_page, f'localhost:{port}/')
        text, count = re.subn(
            rf'(?m)^{option} = .*$', f'{option} = {value}', text
        )
        assert count == 1
    path.write_text(text)


def check_unit(machine: Machine) -> None:
    """Have systemd read the unit: each key, and whether the program is there.

    It is enabled for the next start of the machine.
    """
    path = machine.root / UNIT
    done = subprocess.run(
        ['systemd-analyze', 'verify', '--man=no', path.name],
        env={**machine.env, 'SYSTEMD_UNIT_PATH': f'{path.parent}:'},
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert path.name not in done.stderr
    wanted = path.parent / 'multi-user.target.wants' / path.name
    assert wanted.is_symlink()
