"""The lines of the page on backups, run on the servers that they are for."""

from __future__ import annotations

import os
import shlex
import subprocess

import pytest
import sqlalchemy as sa

from scheduler_service.cmd import manage
from tests.support import page_commands, requirements
from tests.support.documents import SMALL
from tests.support.services import started
from tests.support.stores import import_inventory
from tests.support.waiting import LIMIT_S

pytestmark = [pytest.mark.functional, pytest.mark.db]
LINES = page_commands.lines(page_commands.page('backup'))
# What saves and what restores, and whether daemons run meanwhile.
PROGRAMS = {
    'postgresql': ('pg_dump', 'pg_restore', True),
    'mariadb': ('mariadb-dump', 'mariadb', False),
}
CHECKS = [line for line in LINES if line.startswith('scheduler-manage')]


def shell(line: str, url: sa.URL, folder) -> None:
    """Run a line on the database of a URL in place of ``scheduler``."""
    words = [
        str(url.database) if word == 'scheduler' else word
        for word in shlex.split(line)
    ]
    (folder / '.my.cnf').write_text(
        f'[client]\nhost={url.host}\nport={url.port}\nuser={url.username}\n'
        f'password={url.password}\n'
    )
    server = {
        'HOME': str(folder), 'PGHOST': str(url.host),
        'PGPORT': str(url.port), 'PGUSER': str(url.username),
    }  # fmt: skip

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=folder, env={**os.environ, **server},
            capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip

    done = run()
    # The page says what then.
    while 'deadlock detected' in done.stderr:
        done = run()
    assert done.returncode == 0, (line, done.stderr)


def test_the_page_has_no_other_lines():
    programs = {name for used in PROGRAMS.values() for name in used[:2]}
    others = {line.split()[0] for line in LINES} - programs
    assert others == {'scheduler-manage'}
    assert len(CHECKS) == 2


@pytest.mark.parametrize('kind', PROGRAMS)
def test_what_was_saved_is_there_again(kind, make_store, tmp_path, capsys):
    save, restore, running = PROGRAMS[kind]
    for name in (save, restore):
        requirements.need_program(name)
    (saving,) = (line for line in LINES if line.split()[0] == save)
    (restoring,) = (line for line in LINES if line.split()[0] == restore)
    store = make_store(kind, own=True)
    url = store.engine.url
    host = {'host': 'a', 'vcpus': 2, 'memory_mb': 65_536, 'local_gb': 500}
    import_inventory(store, {'hosts': [host]})
    shell(saving, url, tmp_path)
    ratios = {'cpu_allocation_ratio': 1.0}
    service = started(store, **ratios)
    try:
        flavor = {**SMALL, 'vcpus': 2}
        assert service.select_hosts(flavor=flavor) == ['a']
        if not running:
            service.stop()
        shell(restoring, url, tmp_path)
        if not running:
            service = started(store, **ratios)
        # The claim made since is gone: there is room for another.
        assert service.select_hosts(flavor=flavor) == ['a']
    finally:
        service.stop()
    config = tmp_path / 'scheduler_service.conf'
    connection = url.render_as_string(hide_password=False)
    config.write_text(f'[database]\nconnection = {connection}\n')
    for line in CHECKS:
        words = shlex.split(line)[1:]
        printed = (manage.main(['--config-file', str(config), *words]),
                   capsys.readouterr().out)  # fmt: skip
        assert printed[0] == 0, (line, printed)
